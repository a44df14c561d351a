"""What a rollout worker does with one task of one round, and the scripted policies that check an installation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol

from agent_system.environments.base import BadTask, Task
from agent_system.rollout.policy import Policy
from agent_system.rollout.program import TaskContext
from agent_system.rollout.prompting import Prompter
from agent_system.rollout.scripted import ScriptedPolicy
from agent_system.rollout.types import Episode, Turn
from rsipo.evaluation.episodes import Key, episode_record, turn_record

_KEY = "evaluated_as"


def as_task(key: Key, task: Task) -> Task:
    """``task`` labelled with the episode that is wanted of it."""
    return replace(task, extra={**task.extra, _KEY: key})


class TurnQueue(Protocol):
    """Where turns go as they end (``ray.util.queue.Queue``)."""

    async def put_async(self, item: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class PanelGame:
    """Plays a task labelled by ``as_task`` once, without a skill. Result: the episode's record (``episode_record``).

    All random numbers derive from (round's seed, task id, turn), so neither the batch nor the worker matters.

    Attributes:
        temperature: of the responses.
        script: the scripted policy that plays in place of the rollout servers' model.
        in_detail: the record also has the ``reward`` that training would give, and every turn its ``prompt`` as text.
        turns: gets the record of every turn as it ends, with ``task_id``, ``seed``, ``number``, ``instruction``.
    """

    temperature: float
    script: str | None = None
    in_detail: bool = False
    turns: TurnQueue | None = None

    async def run(self, task: Task, context: TaskContext) -> dict[str, Any]:
        key: Key = task.extra[_KEY]
        context = replace(context, step=key.seed)
        if self.script is not None:
            context = replace(context, policy=scripted_policy(self.script, task, context.prompter))

        async def send(turn: Turn) -> None:
            assert self.turns is not None
            label = {"task_id": task.task_id, "seed": key.seed, "number": turn.context.step}
            await self.turns.put_async(turn_record(turn) | label | {"instruction": turn.context.instruction})

        episode = await context.episode(
            0, kind="panel", temperature=self.temperature, on_turn=send if self.turns is not None else None
        )
        record = episode_record(key, task, episode)
        return _with_details(record, episode, context) if self.in_detail else record


def _with_details(record: dict[str, Any], episode: Episode, context: TaskContext) -> dict[str, Any]:
    spec, tokenizer = context.spec, context.prompter.tokenizer
    reward = spec.success_reward * record["success"] - spec.invalid_action_penalty * episode.invalid_actions
    prompts = [
        tokenizer.decode(turn.generation.prompt_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        for turn in episode.turns
    ]
    transcript = [{**turn, "prompt": prompt} for turn, prompt in zip(record["transcript"], prompts, strict=True)]
    return {**record, "reward": round(reward, 6), "transcript": transcript}


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
