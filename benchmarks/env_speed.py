"""How much faster is the patched ALFWorld engine than stock TextWorld? Both play the same games in this one process.

    python benchmarks/env_speed.py                       # generated games of real size
    python benchmarks/env_speed.py --data $ALFWORLD_DATA --split valid_unseen --games 4

CPU time is measured (wall time on a busy machine says little). "cold" is a game's first load with empty caches, "warm"
one with the translation in memory, "disk" one with it on disk. Every frame of the two engines is compared on the way.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from agent_system.environments.alfworld.engine import Frame, GameEngine
from agent_system.environments.alfworld.generator import generate_games
from agent_system.environments.alfworld.index import scan
from agent_system.environments.alfworld.safety import read_game
from agent_system.environments.alfworld.translation import TranslationCache

Times = dict[str, list[float]]


def main(
    data: Annotated[Path | None, typer.Option(help="Data root; without it games are generated.")] = None,
    split: Annotated[str, typer.Option(help="Split to take the games from.")] = "train",
    games: Annotated[int, typer.Option(min=1, help="Number of games, spread over the split.")] = 3,
    size: Annotated[str, typer.Option(help="Size of generated games: micro, tiny, small or real.")] = "real",
    steps: Annotated[int, typer.Option(min=1, help="Steps per game: the walkthrough, then 'look'.")] = 8,
) -> None:
    """Print CPU milliseconds per load and step, stock and patched, and their ratios."""
    stock: Times = defaultdict(list)
    fast: Times = defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch:
        if data is None:
            data = Path(scratch) / "games"
            generate_games(data, split=split, count=games, size=size)
        tasks = scan(data, split)
        chosen = tasks[:: max(1, len(tasks) // games)][:games]
        engines = GameEngine("stock"), GameEngine("fast", TranslationCache(scratch))
        for number, task in enumerate(chosen, start=1):
            typer.echo(f"[{number}/{len(chosen)}] {task.task_id}", err=True)
            game = read_game(task.location, sha256=task.sha256)
            actions = (game["walkthrough"] + ["look"] * steps)[:steps]
            expected = _play(engines[0], game, actions, "cold", stock)
            if _play(engines[1], game, actions, "cold", fast) != expected:
                raise SystemExit(f"the engines differ on {task.task_id}")
            _timed(lambda game=game: engines[1].load(game, "warm"), fast["warm"])
            from_disk = GameEngine("fast", TranslationCache(scratch))
            _timed(lambda game=game, engine=from_disk: engine.load(game, "disk"), fast["disk"])
        Console().print(_table(stock, fast))


def _play(engine: GameEngine, game: dict[str, Any], actions: list[str], load: str, times: Times) -> list[Frame]:
    frames = [_timed(lambda: engine.load(game, "game"), times[load])]
    return frames + [_timed(lambda action=action: engine.step(action), times["step"]) for action in actions]


def _timed(call: Any, record: list[float]) -> Any:
    start = time.process_time()
    result = call()
    record.append(1000 * (time.process_time() - start))
    return result


def _table(stock: Times, fast: Times) -> Table:
    table = Table("CPU ms, mean", "stock", "fast", "stock / fast")
    for label, ours, theirs in (
        ("load + reset, cold", "cold", "cold"),
        ("load + reset, from disk", "disk", "cold"),
        ("load + reset, warm", "warm", "cold"),
        ("step", "step", "step"),
    ):
        slow, quick = _mean(stock[theirs]), _mean(fast[ours])
        table.add_row(label, f"{slow:.1f}", f"{quick:.1f}", f"{slow / quick:.1f}")
    return table


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    typer.run(main)
