"""What a rollout worker does with one task: rollouts, a skill for each, and the execution check (Algorithm 1, 3-10)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from agent_system.environments.base import Task
from agent_system.rollout.policy import PolicyFault
from agent_system.rollout.program import TaskContext, gather
from agent_system.rollout.prompting import PromptTooLong
from agent_system.rollout.types import Episode, Sampling
from rsipo.prompts import AnalysisPromptTooLong, fit_analysis_messages
from rsipo.settings import SkillSettings
from rsipo.skills import read_skill_tokens
from rsipo.split import Split, choose_evidence, split

PROMPT_TOO_LONG = "prompt_too_long"
"""Why a skill is invalid with which the teacher's prompts would exceed their budget."""


@dataclass(frozen=True, slots=True)
class SkillWriting:
    """One analysis of an episode by the policy.

    Attributes:
        prompt_ids: int32 [P], the analysis prompt.
        response_ids: int32 [R], what the policy wrote.
        log_probs: float32 [R], of the sampled tokens.
        text: the response as text.
        skill: the skill in it; empty where none could be read.
        valid: whether the skill may teach; ``reason`` says why not (``rsipo.skills.InvalidReason``, or
            ``PROMPT_TOO_LONG``).
        mask: bool [R], eq. (9): the tokens of the skill string, or all tokens of an invalid output.
        leaks_answer: whether the skill holds a gold answer.
    """

    prompt_ids: np.ndarray
    response_ids: np.ndarray
    log_probs: np.ndarray
    text: str
    skill: str
    valid: bool
    reason: str
    mask: np.ndarray
    leaks_answer: bool = False


@dataclass(slots=True)
class TaskRecord:
    """All that one task produced in one step.

    Attributes:
        episodes: the student rollouts by index; lost ones have a status other than ``ok``.
        skills: the skill of each rollout, None where none was asked for or the writing was lost.
        split: evidence and control indices; without an execution check all rollouts are control.
        evidence_index: rollout that the checked skill was written from, None without a usable one.
        rewrite: the checked skill, None without evidence or where the writing was lost.
        replays: teacher episodes with the checked skill; empty unless it is valid.
        replay_matched: per replay, whether it started from the evidence's initial state; None where it was lost before.
        state_matched: all of ``replay_matched`` that are known; None where none is.
        errors: what was lost besides episodes, in words.
        seconds: wall time since the task's start at which ``rollouts``, ``skills`` and ``check`` were done.
    """

    task: Task
    split: Split
    episodes: list[Episode] = field(default_factory=list)
    skills: list[SkillWriting | None] = field(default_factory=list)
    evidence_index: int | None = None
    rewrite: SkillWriting | None = None
    replays: list[Episode] = field(default_factory=list)
    replay_matched: list[bool | None] = field(default_factory=list)
    state_matched: bool | None = None
    errors: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SkillProgram:
    """The ``TaskProgram`` of RSIPO, and with parts switched off of SEED and GRPO.

    Nothing waits for other tasks, nor longer than it must for its own: the skill of a rollout is written when that
    rollout is over, and the execution check starts when the evidence trajectory is certain.

    Attributes:
        num_rollouts: G; even where ``check`` is on.
        num_replays: K.
        temperature: of student and teacher episodes.
        skill: how skills are written and when they are valid.
        write_skills: write a skill for every rollout and the teacher's prompts with it.
        check: run the execution check.
    """

    num_rollouts: int
    num_replays: int
    temperature: float
    skill: SkillSettings
    write_skills: bool = True
    check: bool = True

    async def run(self, task: Task, context: TaskContext) -> TaskRecord:
        """Result for one task; see TaskRecord. Lost episodes and lost writings are values, other errors propagate."""
        start = time.perf_counter()
        record = TaskRecord(task, self._split(context))
        rollouts = [
            asyncio.ensure_future(context.episode(index, kind="student", temperature=self.temperature))
            for index in range(self.num_rollouts)
        ]

        async def write_skills() -> None:
            record.skills = await gather([self._own_skill(rollout, record, context) for rollout in rollouts])
            record.seconds["skills"] = time.perf_counter() - start

        async def collect() -> None:
            record.episodes = list(await asyncio.gather(*rollouts))
            record.seconds["rollouts"] = time.perf_counter() - start

        async def check() -> None:
            await self.execution_check(rollouts, record, context)
            record.seconds["check"] = time.perf_counter() - start

        await gather([write_skills(), collect(), *([check()] if self.check else [])])
        return record

    async def execution_check(
        self, rollouts: Sequence[asyncio.Future[Episode]], record: TaskRecord, context: TaskContext
    ) -> None:
        """Evidence, rewritten skill, replays; fills ``record``, whose split was drawn before any outcome was known."""
        evidence = await _evidence(record.split, rollouts)
        if evidence is None:
            return
        record.evidence_index = evidence.index
        record.rewrite, _ = await self._write(evidence, self.skill.rewrite_temperature, "rewrite/0", record, context)
        if record.rewrite is None or not record.rewrite.valid:
            return
        skill = record.rewrite.skill
        record.replays = await gather(
            [
                context.episode(index, kind="replay", temperature=self.temperature, skill=skill)
                for index in range(self.num_replays)
            ]
        )
        record.replay_matched = [
            replay.fingerprint == evidence.fingerprint if replay.fingerprint else None for replay in record.replays
        ]
        known = [matched for matched in record.replay_matched if matched is not None]
        record.state_matched = all(known) if known else None

    def _split(self, context: TaskContext) -> Split:
        if not self.check:
            return Split(evidence=(), control=tuple(range(self.num_rollouts)))
        return split(self.num_rollouts, seed=context.settings.run_seed, step=context.step, task_id=context.task.task_id)

    async def _own_skill(
        self, rollout: asyncio.Future[Episode], record: TaskRecord, context: TaskContext
    ) -> SkillWriting | None:
        """The skill of one rollout, and with it the teacher's prompt of each of its turns."""
        episode = await rollout
        if not self.write_skills or episode.status != "ok":
            return None
        purpose = f"skill/{episode.index}"
        writing, prompts = await self._write(episode, self.skill.temperature, purpose, record, context)
        for turn, prompt in zip(episode.turns, prompts, strict=False):
            turn.teacher_prompt_ids = prompt
        return writing

    async def _write(
        self, episode: Episode, temperature: float, purpose: str, record: TaskRecord, context: TaskContext
    ) -> tuple[SkillWriting | None, list[np.ndarray]]:
        """Ask the policy for the skill of ``episode``.

        Returns the writing (None, with an error in the record, where the answer was lost) and, if it is valid, the
        teacher's prompt of each of the episode's turns.
        """
        sampling = Sampling(temperature, self.skill.max_tokens, seed=context.seed(purpose))
        try:
            messages = fit_analysis_messages(
                episode,
                max_tokens=self.skill.max_prompt_length,
                count_tokens=lambda messages: len(context.prompter.encode(messages)),
                benchmark=context.spec.name,
                profile=self.skill.prompt_profile,
                repeat_format=self.skill.repeat_format,
            )
            generation = await context.generate(messages, sampling, purpose=purpose)
        except (AnalysisPromptTooLong, PolicyFault, asyncio.TimeoutError) as fault:
            record.errors.append(f"{purpose}: {str(fault) or 'no answer within its deadline'}")
            return None, []
        skill, mask = read_skill_tokens(
            generation.response_ids.tolist(),
            context.prompter.decode,
            finished=generation.finished,
            settings=self.skill,
            answers=context.task.extra.get("answers", ()),
        )
        valid, reason, prompts = skill.valid, str(skill.reason), []
        if valid:
            try:
                prompts = await _teacher_prompts(episode, skill.text, context)
            except PromptTooLong:
                valid, reason, mask = False, PROMPT_TOO_LONG, np.ones_like(mask)
        writing = SkillWriting(
            prompt_ids=generation.prompt_ids,
            response_ids=generation.response_ids,
            log_probs=generation.log_probs,
            text=generation.text,
            skill=skill.text,
            valid=valid,
            reason=reason,
            mask=mask,
            leaks_answer=skill.leaks_answer,
        )
        return writing, prompts


async def _evidence(parts: Split, rollouts: Sequence[asyncio.Future[Episode]]) -> Episode | None:
    """What ``choose_evidence`` chooses, without waiting for rollouts that can no longer change it.

    The choice is the first success in the split's random order: once that one is over, later ones do not matter.
    """
    seen: list[Episode] = []
    for index in parts.evidence:
        seen.append(await rollouts[index])
        if seen[-1].status == "ok" and seen[-1].success:
            break
    chosen = choose_evidence(Split(evidence=tuple(range(len(seen))), control=()), seen)
    return None if chosen is None else seen[chosen]


async def _teacher_prompts(episode: Episode, skill: str, context: TaskContext) -> list[np.ndarray]:
    """The teacher's prompt of every turn, int32 [P'] each. Raises PromptTooLong."""
    prompts = []
    for turn in episode.turns:
        prompts.append(context.prompter.teacher_prompt(context.spec, turn.context, skill))
        await asyncio.sleep(0)  # tokenizing many turns must not hold up the other episodes' requests
    return prompts
