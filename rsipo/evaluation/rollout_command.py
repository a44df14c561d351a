"""``rsipo rollout``: a few episodes to look at, turn by turn."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rsipo.evaluation.command import read_words
from rsipo.evaluation.panel import make_panel
from rsipo.evaluation.playing import TRAINING_TURNS, check_playable, play_as_in_training, with_data
from rsipo.evaluation.run import EvaluationFiles, Watch, run_evaluation
from rsipo.problems import UserError
from rsipo.run_console import RunConsole
from rsipo.run_settings import RunSettings
from rsipo.specs import make_spec

_LONGEST = 1_000
"""Characters of an observation or a response that are shown; the file has all of them."""

View = Literal["live", "episodes", "none"]
"""One episode after the other, every turn as it ends; or all at once, every episode as it ends; or nothing of them."""


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """The command's options; see its help."""

    checkpoint: bool = False
    script: str | None = None
    split: str = "train"
    tasks: int = 6
    rollouts: int = 1
    seed: int = 0
    view: View = "live"
    out: Path | None = None


def rollout_command(arguments: Sequence[str], options: RolloutOptions) -> int:
    """Run ``rsipo rollout``; returns the exit status.

    The episodes are those of an evaluation of ``tasks`` tasks of ``split`` in ``rollouts`` rounds, with the turns and the
    temperature of training.

    Args:
        arguments: ``[ENV [MODEL [STEP]]] [KEY=VALUE ...]``.

    Raises:
        UserError: everything that the user can put right.
    """
    hf = not options.checkpoint and options.script is None
    subject, overrides = read_words(arguments, hf=hf, script=options.script, more=[TRAINING_TURNS])
    play_as_in_training(subject, options.split, range(options.seed, options.seed + options.rollouts))
    if options.view == "live":
        subject.config.workers.rollout_workers = subject.config.workers.concurrent_tasks = 1
    with with_data(subject, overrides) as ready:
        settings = RunSettings.from_config(ready.config)
        check_playable(ready, settings)
        spec = make_spec(settings.env)
        panel = make_panel(spec, settings.panel, count=options.tasks)
        folder = options.out or Path(settings.run.work_dir) / "rollouts" / time.strftime("%Y%m%d-%H%M%S")
        if EvaluationFiles(folder).episodes.exists():
            raise UserError(f"{folder} holds episodes already: name another folder with --out")
        run_evaluation(ready, settings, spec, panel, folder, watching(options.view))
    return 0


def watching(view: View) -> Watch:
    """What is shown of the episodes."""
    if view == "live":
        return Watch(episode=_show_end, turn=_show_turn, in_detail=True)
    return Watch(episode=_show_episode if view == "episodes" else None, in_detail=True)


def _show_episode(console: RunConsole, record: Mapping[str, Any]) -> None:
    _show_start(console, record, record["instruction"])
    for number, turn in enumerate(record["transcript"], start=1):
        _show_one(console, number, turn)
    _show_end(console, record)


def _show_turn(console: RunConsole, turn: Mapping[str, Any]) -> None:
    if turn["number"] == 1:
        _show_start(console, turn, turn["instruction"])
    _show_one(console, turn["number"], turn)


def _show_start(console: RunConsole, what: Mapping[str, Any], instruction: str) -> None:
    console.print(f"\n{what['task_id']} · seed {what['seed']}", style="bold")
    console.print(instruction)


def _show_one(console: RunConsole, number: int, turn: Mapping[str, Any]) -> None:
    console.print(f"[{number}] {_short(turn['observation'])}", style="dim")
    for line in _answer(turn):
        console.print(line)


def _show_end(console: RunConsole, record: Mapping[str, Any]) -> None:
    if record["final_observation"]:
        console.print(_short(record["final_observation"]), style="dim")
    if record["error"]:
        console.print(record["error"], style="yellow")
    verdict = "won" if record["success"] else "lost by a fault" if record["status"] != "ok" else "not won"
    console.print(f"{verdict} in {record['turns']} turns, reward {record['reward']:g}", style="bold")


def _answer(turn: Mapping[str, Any]) -> Iterator[str]:
    yield f"    {_short(turn['response'])}"
    if not turn["valid"]:
        yield "    (not in the format)"
    elif not turn["admissible"]:
        yield f"    (the environment does not know {turn['action']!r})"


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … ({len(text)} characters)"
