"""Real games played by scripted policies: the perfect one, the hopeless one, and one that guesses by the request's seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_system.environments.alfworld.spec import AlfworldSpec
from agent_system.environments.base import BadTask, Task
from agent_system.rollout.prompting import Prompter
from agent_system.rollout.scripted import Request, ScriptedPolicy
from rsipo.evaluation.episodes import Key
from rsipo.evaluation.program import SCRIPTS, PanelGame, as_task
from rsipo.models import EMBEDDED_POLICY

SPLITS = ("valid_seen", "valid_unseen")


def wanted(spec: AlfworldSpec, seeds: tuple[int, ...]) -> list[Task]:
    return [
        as_task(Key(split, seed, task.task_id), task)
        for seed in seeds
        for split in SPLITS
        for task in spec.tasks(split)
    ]


@pytest.mark.data
def test_the_walkthroughs_solve_every_real_game(real_games: Path, play: Callable[..., list[Any]]) -> None:
    spec = AlfworldSpec(str(real_games), cache_dir=str(real_games / "cache"))
    records = play(spec, PanelGame(0.4, "walkthrough"), wanted(spec, (1,)), slots=4)
    assert len(records) == 24
    assert all(record["success"] and record["status"] == "ok" for record in records)
    assert sum(record["invalid_actions"] + record["inadmissible_actions"] for record in records) == 0
    assert all(record["turns"] == len(record["transcript"]) <= 10 for record in records)


def test_nonsense_solves_nothing_and_every_action_of_it_is_invalid(spec: AlfworldSpec, play: Callable) -> None:
    records = play(spec, PanelGame(0.4, "nonsense"), wanted(spec, (1, 2)), slots=4)
    assert not any(record["success"] for record in records)
    assert {(record["status"], record["turns"], record["invalid_actions"]) for record in records} == {("ok", 8, 8)}


def test_a_task_without_walkthrough_is_lost_not_failed(tmp_path: Path) -> None:
    (tmp_path / "game").write_text("{}")
    with pytest.raises(BadTask, match="a/b holds no walkthrough"):
        next(SCRIPTS["walkthrough"](Task("a/b", "look", str(tmp_path / "game"), "")))


def guess(request: Request) -> str:
    """A policy that takes an action by the request's seed and now and then breaks the format."""
    number = random.Random(request.seed)
    listed = request.prompt.rsplit("you can take now:\n", 1)[1].split("\n\n", 1)[0]
    action = number.choice(listed.splitlines()).removeprefix("- ")
    return action if number.random() < 0.1 else f"<think>{number.random()}</think><action>{action}</action>"


def test_episodes_depend_on_neither_batch_nor_workers_nor_order(spec: AlfworldSpec, play: Callable) -> None:
    """One at a time, all at once, two workers with a ragged last batch, backwards: the same episodes to the letter."""
    client = ScriptedPolicy(Prompter(str(EMBEDDED_POLICY), 1 << 20, 1 << 20), guess)
    program, tasks = PanelGame(0.4), wanted(spec, (1, 2))

    def records(tasks: list[Task], **how: int) -> dict[tuple, dict]:
        played = play(spec, program, tasks, client=client, **how)
        return {(r["split"], r["seed"], r["task_id"]): {**r, "seconds": 0} for r in played}

    together = records(tasks, slots=24)
    assert len(together) == 24
    assert len({str(record["transcript"]) for record in together.values()}) > 20  # rounds and tasks differ
    assert records(tasks, slots=1) == together
    assert records(tasks, slots=5, workers=2) == together
    assert records(tasks[::-1], slots=7) == together
    assert records(tasks[12:], slots=3) == {key: value for key, value in together.items() if key[1] == 2}
