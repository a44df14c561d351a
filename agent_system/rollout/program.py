"""What a worker does with one task: an algorithm plugs in as a ``TaskProgram``, written on ``TaskContext``'s tools."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from agent_system.environments.base import EnvironmentFault, EnvironmentSpec, Task
from agent_system.rollout.episode import Deadlines, EnvSession, run_episode
from agent_system.rollout.policy import Policy
from agent_system.rollout.prompting import Messages, Prompter
from agent_system.rollout.seeds import derive_seed
from agent_system.rollout.types import Episode, Generation, Sampling, Turn

T = TypeVar("T")


class SessionPool(Protocol):
    """Where environment slots come from."""

    async def acquire(self) -> EnvSession: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Attributes:
    run_seed: all seeds derive from it.
    max_response_tokens: budget of one turn's response.
    deadlines: seconds per turn and per episode.
    generation_attempts: tries per generation where the server or the connection is lost.
    concurrent_tasks: tasks that one worker runs at once; each plays many episodes.
    """

    run_seed: int
    max_response_tokens: int
    deadlines: Deadlines
    generation_attempts: int = 4
    concurrent_tasks: int = 64


@dataclass
class TaskContext:
    """Tools of a program for one task at one step. Every seed is derived from (run seed, step, task id, …)."""

    task: Task
    step: int
    spec: EnvironmentSpec
    policy: Policy
    sessions: SessionPool
    settings: RolloutSettings
    counters: Counter[str] = field(default_factory=Counter)

    @property
    def prompter(self) -> Prompter:
        return self.policy.prompter

    def seed(self, *parts: int | str) -> int:
        """A 31-bit seed for something about this task, reproducible on resume."""
        return derive_seed(self.settings.run_seed, self.step, self.task.task_id, *parts)

    async def episode(
        self,
        index: int,
        *,
        kind: str,
        temperature: float,
        skill: str | None = None,
        on_turn: Callable[[Turn], Awaitable[None]] | None = None,
    ) -> Episode:
        """Play one episode from the task's initial state; with a ``skill`` the teacher plays it.

        Args:
            index: its number among the episodes of this ``kind``, part of its seeds.
            kind: what it is for, e.g. ``student`` or ``replay``, part of its seeds.
            temperature: of every response; 0 is greedy.
            on_turn: as of ``run_episode``.

        An environment slot is held only while the episode runs. Never call this while holding another slot.
        """
        name = f"{self.step}/{self.task.task_id}/{kind}/{index}"
        try:
            async with self._slot() as session:
                episode = await run_episode(
                    self.task,
                    index,
                    session=session,
                    policy=self.policy,
                    spec=self.spec,
                    sampling=Sampling(temperature, self.settings.max_response_tokens),
                    seed_parts=(self.settings.run_seed, self.step, self.task.task_id, kind, index),
                    request_id=name,
                    deadlines=self.settings.deadlines,
                    skill=skill,
                    on_turn=on_turn,
                )
        except EnvironmentFault as fault:
            episode = Episode(self.task.task_id, index, "failed", False, [], "", error=f"no environment slot: {fault}")
        self.counters.update({"episodes": 1, "turns": episode.num_turns, episode.status: 1})
        return episode

    async def generate(self, prompt: Messages | np.ndarray, sampling: Sampling, *, purpose: str) -> Generation:
        """One answer of the policy outside an episode, to chat messages or to token ids (int32 [P]).

        Raises:
            PolicyFault: the server is lost for good.
            asyncio.TimeoutError: no answer within the turn deadline, scaled to the token budget where that is larger
                than a turn's.
        """
        prompt_ids = prompt if isinstance(prompt, np.ndarray) else self.prompter.encode(prompt)
        request = self.policy.generate(prompt_ids, sampling, f"{self.step}/{self.task.task_id}/{purpose}")
        self.counters["generations"] += 1
        turns = max(1.0, sampling.max_tokens / self.settings.max_response_tokens)
        return await asyncio.wait_for(request, turns * self.settings.deadlines.turn_s)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[EnvSession]:
        session = await self.sessions.acquire()
        self.counters["episodes_running"] += 1
        try:
            yield session
        finally:
            self.counters["episodes_running"] -= 1
            session.release()


class TaskProgram(Protocol):
    """What to do with one task. Picklable, holds settings only."""

    async def run(self, task: Task, context: TaskContext) -> Any: ...


@dataclass(frozen=True, slots=True)
class GroupRollout:
    """GRPO's group: ``num_rollouts`` student episodes of the task, at once. Result: list[Episode], by index."""

    num_rollouts: int
    temperature: float = 1.0

    async def run(self, task: Task, context: TaskContext) -> list[Episode]:
        return await gather(
            [context.episode(i, kind="student", temperature=self.temperature) for i in range(self.num_rollouts)]
        )


@dataclass(frozen=True, slots=True)
class PanelEpisode:
    """Evaluation: ``repeats`` student episodes without a skill. Result: list[Episode], by index."""

    temperature: float
    repeats: int = 1

    async def run(self, task: Task, context: TaskContext) -> list[Episode]:
        return await gather(
            [context.episode(i, kind="panel", temperature=self.temperature) for i in range(self.repeats)]
        )


async def gather(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at once and return their results in order; the first exception cancels the rest and propagates."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
