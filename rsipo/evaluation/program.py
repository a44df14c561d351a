"""What a rollout worker does with one task of one round, and the scripted policies that check an installation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

from agent_system.environments.base import BadTask, Task
from agent_system.rollout.policy import Policy
from agent_system.rollout.program import TaskContext
from agent_system.rollout.prompting import Prompter
from agent_system.rollout.scripted import ScriptedPolicy
from rsipo.evaluation.episodes import Key, episode_record

_KEY = "evaluated_as"


def as_task(key: Key, task: Task) -> Task:
    """``task`` labelled with the episode that is wanted of it."""
    return replace(task, extra={**task.extra, _KEY: key})


@dataclass(frozen=True, slots=True)
class PanelGame:
    """Plays a task labelled by ``as_task`` once, without a skill. Result: the episode's record (``episode_record``).

    All random numbers derive from (round's seed, task id, turn), so neither the batch nor the worker matters.
    ``script`` names the scripted policy that plays in place of the rollout servers' model.
    """

    temperature: float
    script: str | None = None

    async def run(self, task: Task, context: TaskContext) -> dict[str, Any]:
        key: Key = task.extra[_KEY]
        context = replace(context, step=key.seed)
        if self.script is not None:
            context = replace(context, policy=scripted_policy(self.script, task, context.prompter))
        episode = await context.episode(0, kind="panel", temperature=self.temperature)
        return episode_record(key, task, episode)


def scripted_policy(name: str, task: Task, prompter: Prompter) -> Policy:
    """A scripted policy for one episode of ``task``."""
    answers = SCRIPTS[name](task)
    return Policy(ScriptedPolicy(prompter, lambda request: next(answers)), prompter, attempts=1)


def _walkthrough(task: Task) -> Iterator[str]:
    """The actions that the game's own file says win it, in the right format."""
    try:
        actions = json.loads(Path(task.location).read_text(encoding="utf-8"))["walkthrough"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadTask(f"{task.task_id} holds no walkthrough") from error
    for action in actions:
        yield f"<think>as the walkthrough says</think><action>{action}</action>"
    yield from _nonsense(task)


def _nonsense(task: Task) -> Iterator[str]:
    """Words in no format that any benchmark knows."""
    return repeat("colourless green ideas sleep furiously")


#: Policies that need no model: a perfect one, and one that never gives a valid action.
SCRIPTS: dict[str, Callable[[Task], Iterator[str]]] = {"walkthrough": _walkthrough, "nonsense": _nonsense}
