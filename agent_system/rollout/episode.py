"""One episode of one policy in one environment slot: prompt, generate, project, step, until done, lost or cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from agent_system.environments.base import (
    BadTask,
    EnvironmentFault,
    EnvironmentSpec,
    PromptContext,
    ResetResult,
    StepResult,
    Task,
)
from agent_system.rollout.policy import Policy, PolicyFault
from agent_system.rollout.prompting import PromptTooLong
from agent_system.rollout.seeds import derive_seed
from agent_system.rollout.types import Episode, Sampling, Turn


class EnvSession(Protocol):
    """An environment slot, held for one episode. Every call raises EnvironmentFault when the environment is lost."""

    async def reset(self, task: Task) -> ResetResult: ...

    async def step(self, action: str) -> StepResult: ...

    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds allowed for one turn (generation with its retries, and the step) and for one episode with its reset."""

    turn_s: float
    episode_s: float


async def run_episode(
    task: Task,
    index: int,
    *,
    session: EnvSession,
    policy: Policy,
    spec: EnvironmentSpec,
    sampling: Sampling,
    seed_parts: Sequence[int | str],
    request_id: str,
    deadlines: Deadlines,
    skill: str | None = None,
    on_turn: Callable[[Turn], Awaitable[None]] | None = None,
) -> Episode:
    """Play one episode; with a ``skill`` the teacher plays it (the skill stands in every prompt).

    ``on_turn`` is awaited with every turn when it is over, outside the turn's deadline.

    Turn ``t`` (from 1) samples with the seed derived from ``(*seed_parts, t)``. What the infrastructure does to an
    episode is a value: ``status`` is ``failed`` when the environment or the server is lost for good, ``timeout``
    when a deadline passes; ``error`` says why and the turns completed so far are kept. An episode whose next prompt cannot
    fit ends there, unsuccessful, with the reason in ``error``. Anything else (a programming error) propagates.
    """
    episode = Episode(task_id=task.task_id, index=index, status="ok", success=False, turns=[], fingerprint="")
    player = _Player(session, policy, spec, sampling, tuple(seed_parts), request_id, deadlines.turn_s, skill, on_turn)
    started = time.perf_counter()
    try:
        await asyncio.wait_for(player.play(episode, task), deadlines.episode_s)
    except PromptTooLong as fault:
        # No fault of the infrastructure: leaving such episodes out would favour skills that make prompts overflow.
        episode.error = f"{type(fault).__name__}: {fault}"
    except (EnvironmentFault, PolicyFault) as fault:
        episode.status, episode.error = "failed", f"{type(fault).__name__}: {fault}"
        episode.bad_task = isinstance(fault, BadTask)
    except _TurnDeadline as deadline:
        episode.status, episode.error = "timeout", str(deadline)
    except asyncio.TimeoutError:
        episode.status = "timeout"
        episode.error = f"episode not over within {deadlines.episode_s:g} s ({episode.num_turns} turns played)"
    episode.seconds = time.perf_counter() - started
    return episode


class _TurnDeadline(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _Player:
    session: EnvSession
    policy: Policy
    spec: EnvironmentSpec
    sampling: Sampling
    seed_parts: tuple[int | str, ...]
    request_id: str
    turn_s: float
    skill: str | None
    on_turn: Callable[[Turn], Awaitable[None]] | None

    async def play(self, episode: Episode, task: Task) -> None:
        start = await self.session.reset(task)
        episode.fingerprint, episode.instruction = start.fingerprint, start.instruction
        context = PromptContext(start.instruction, start.observation)
        while context.step <= self.spec.max_turns:
            try:
                turn, result = await asyncio.wait_for(self._turn(context), self.turn_s)
            except asyncio.TimeoutError as error:
                raise _TurnDeadline(f"turn {context.step} not over within {self.turn_s:g} s") from error
            episode.turns.append(turn)
            episode.final_observation = result.observation.text
            if self.on_turn is not None:
                await self.on_turn(turn)
            if result.done:
                episode.success = result.success
                return
            history = (*context.history, (context.observation.text, turn.action))
            context = PromptContext(start.instruction, result.observation, history)

    async def _turn(self, context: PromptContext) -> tuple[Turn, StepResult]:
        prompter = self.policy.prompter
        if self.skill is None:
            prompt_ids = prompter.student_prompt(self.spec, context)
        else:
            prompt_ids = prompter.teacher_prompt(self.spec, context, self.skill)
        sampling = replace(self.sampling, seed=derive_seed(*self.seed_parts, context.step))
        generation = await self.policy.generate(prompt_ids, sampling, self.request_id)
        projected = self.spec.project(generation.text)
        result = await self.session.step(projected.text)
        valid = projected.valid and (result.admissible or not self.spec.inadmissible_is_invalid)
        return Turn(context, generation, projected.text, action_valid=valid, admissible=result.admissible), result
