"""RSIPOTrainer: Algorithm 1 of the paper, one method per line of it. GRPO, SEED and the ablations are its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from agent_system.environments.base import EnvironmentSpec, Task
from agent_system.rollout.types import Episode, Turn
from rsipo.audit.records import AuditWriter
from rsipo.estimators import (
    CheckOutcome,
    CheckResult,
    EpisodeOutcome,
    StagedStatistics,
    TypeStatistics,
    evaluate_checks,
)
from rsipo.execution_check import SkillProgram, TaskRecord
from rsipo.losses import gated_distillation, skill_policy_gradient
from rsipo.prompts import ANALYSIS_PROMPT_VERSION
from rsipo.record_keeping import (
    audit_records,
    check_metrics,
    distillation_metrics,
    evidence_transcripts,
    lost_episodes,
    rollout_metrics,
)
from rsipo.settings import AlgorithmSettings, MethodSettings
from rsipo.tasks import TaskSampler
from verl_ext.batch import Sample
from verl_ext.cluster import PolicyCluster, UpdateReport
from verl_ext.losses import AuxiliaryLoss, TokenTerm
from verl_ext.trainer import AgentPPOTrainer, Metrics, PPOSettings, TrainingFault, TurnSample

Play = Callable[[Any, Sequence[Task], int], list[Any]]
"""(program, tasks, step) -> one result per task, in order."""


def loss_terms(method: MethodSettings) -> tuple[list[TokenTerm], AuxiliaryLoss | None]:
    """What a method adds to the PPO loss: the distillation term, eq. (12), and the skill loss, eq. (10)."""
    terms = []
    if method.distillation == "gated":
        distillation = partial(gated_distillation, beta=method.gate_sharpness)
        terms.append(
            TokenTerm("opsd", distillation, method.opsd_coefficient, ("teacher_log_prob", "trust", "has_teacher"))
        )
    skill = None
    if method.skill_reward == "replay_gain":
        skill = AuxiliaryLoss("skill", skill_policy_gradient, ("skill_mask", "skill_reward", "num_tasks"))
    return terms, skill


def refuse_a_biased_step(step: int, records: Sequence[TaskRecord], max_lost: float) -> None:
    """Episodes that survive a fault are not like the others: without a retriever, those that never searched.

    Args:
        max_lost: share of the step's rollouts and replays that may be lost.

    Raises:
        TrainingFault: more were.
    """
    lost, played, reason = lost_episodes(records)
    if lost > max_lost * played:
        raise TrainingFault(
            f"step {step} is not trained: {lost} of its {played} episodes were lost, most often by {reason!r}, and the others "
            f"are no fair sample (workers.max_lost={max_lost:g})"
        )


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a training sample comes from: the task's place in the batch, and the turn."""

    task_index: int
    turn: Turn


@dataclass(slots=True)
class Checked:
    """One step's tasks with what their execution check gave. Without a check: trust 1, reward 0, nothing staged."""

    records: list[TaskRecord]
    results: list[CheckResult | None]
    staged: StagedStatistics | None

    def trust(self, index: int) -> float:
        result = self.results[index]
        return 1.0 if result is None else result.trust


class RSIPOTrainer(AgentPPOTrainer):
    """Trains policy and skills together.

    Args:
        cluster, settings, evaluate, log, checkpoints, clock: as AgentPPOTrainer takes them.
        algorithm: the method's settings.
        spec: the benchmark.
        sampler: which tasks a step trains on.
        play: runs a program on tasks with the rollout workers.
        max_lost: share of a step's episodes that may be lost; what is left of a step that lost more is no fair sample.
        audit: takes the records of every execution check; None writes none.
    """

    def __init__(
        self,
        cluster: PolicyCluster,
        settings: PPOSettings,
        *,
        algorithm: AlgorithmSettings,
        spec: EnvironmentSpec,
        sampler: TaskSampler,
        play: Play,
        audit: AuditWriter | None,
        max_lost: float = 1.0,
        **loop: Any,
    ) -> None:
        super().__init__(cluster, settings, **loop)
        self.algorithm = algorithm
        self.statistics = TypeStatistics(algorithm.check.eta)
        self._spec = spec
        self._sampler = sampler
        self._play = play
        self._audit = audit
        self._max_lost = max_lost

    # ------------------------------------------------------------------ Algorithm 1

    def train_step(self, step: int) -> Metrics:
        """One training step of RSIPO (Algorithm 1)."""
        method = self.algorithm.method
        with self.playing("rollouts"):
            records = self.roll_out(step)  # lines 1 and 3-10: rollouts, skills, split, rewrite, replays
        refuse_a_biased_step(step, records, self._max_lost)
        checked = self.evaluate_checks(records)  # lines 8, 11, 12: gains, type statistics, rewards, trust
        turns = self.turn_samples(records)
        metrics = rollout_metrics(records, self._spec)
        metrics |= self.score(turns)  # line 2: old and reference log-probabilities, advantages
        if method.distillation != "none":
            with self.clock.phase("teacher"):
                metrics |= self.add_teacher(turns, checked)  # line 2 and eq. (12): teacher log-probabilities, trust
        skills = self.skill_samples(checked) if method.skill_reward != "none" else []
        report = self.update(step, turns, skills)  # line 13: eq. (13), one update
        metrics |= self.update_metrics(report) | check_metrics(checked.records, checked.results)
        self.commit(step, checked, report)  # only after the update succeeded
        metrics["student/tasks_left_out"] = self.leave_out_bad_tasks(records)
        self.sync(step)
        return metrics

    def roll_out(self, step: int) -> list[TaskRecord]:
        """Lines 1 and 3-10 for this step's tasks. Each task runs by itself: its check starts when its rollouts end."""
        algorithm = self.algorithm
        program = SkillProgram(
            num_rollouts=algorithm.check.num_rollouts,
            num_replays=algorithm.check.num_replays,
            temperature=self.settings.temperature,
            skill=algorithm.skill,
            write_skills=algorithm.method.needs_skills,
            check=algorithm.method.needs_check,
        )
        return self._play(program, self._sampler.draw(step), step)

    def evaluate_checks(self, records: list[TaskRecord]) -> Checked:
        """Eqs. (4)-(8) and (11) for the batch, with the type statistics staged, not committed."""
        if not self.algorithm.method.needs_check:
            return Checked(records, [None] * len(records), None)
        outcomes = [_check_outcome(record) for record in records]
        results, staged = evaluate_checks(outcomes, self.statistics, self.algorithm.check)
        return Checked(records, list(results), staged)

    def turn_samples(self, records: list[TaskRecord]) -> list[TurnSample]:
        """Every turn of every usable rollout: one training sample each."""
        return [
            TurnSample(
                sample=Sample(turn.generation.prompt_ids, turn.generation.response_ids, {}, {}),
                group=record.task.task_id,
                episode=f"{record.task.task_id}/{episode.index}",
                reward=self._spec.success_reward if episode.success else 0.0,
                penalty=0.0 if turn.action_valid else self._spec.invalid_action_penalty,
                rollout_log_probs=turn.generation.log_probs,
                origin=Origin(index, turn),
            )
            for index, record in enumerate(records)
            for episode in record.episodes
            if episode.status == "ok"
            for turn in episode.turns
            if len(turn.generation.response_ids)
        ]

    def add_teacher(self, turns: Sequence[TurnSample], checked: Checked) -> Metrics:
        """Teacher log-probabilities of the student's own tokens, and each task's trust. No valid skill, no term."""
        taught = [row for row, turn in enumerate(turns) if turn.origin.turn.teacher_prompt_ids is not None]
        pairs = [(turns[row].origin.turn.teacher_prompt_ids, turns[row].sample.response_ids) for row in taught]
        scores = self.cluster.log_probs(pairs, temperature=self.settings.temperature) if pairs else []
        teacher = dict(zip(taught, scores, strict=True))
        calibrated = self.algorithm.method.trust == "shrunk_gain"
        for row, turn in enumerate(turns):
            sample = turn.sample
            sample.tokens["teacher_log_prob"] = teacher.get(row, np.zeros(len(sample.response_ids), np.float32))
            sample.scalars["has_teacher"] = float(row in teacher)
            sample.scalars["trust"] = checked.trust(turn.origin.task_index) if calibrated else 1.0
        return distillation_metrics(turns, self.algorithm.method.gate_sharpness)

    def skill_samples(self, checked: Checked) -> list[Sample]:
        """One sample per task whose skill was rewritten: analysis prompt, written analysis, its reward (eq. 10)."""
        samples = []
        for record, result in zip(checked.records, checked.results, strict=True):
            written = record.rewrite
            if written is None or result is None or len(written.response_ids) == 0:
                continue
            samples.append(
                Sample(
                    prompt_ids=written.prompt_ids,
                    response_ids=written.response_ids,
                    tokens={"skill_mask": written.mask.astype(np.float32)},
                    scalars={"skill_reward": result.skill_reward, "num_tasks": float(len(checked.records))},
                )
            )
        return samples

    def commit(self, step: int, checked: Checked, report: UpdateReport) -> None:
        """Make the staged statistics current if the update was applied, and write the audit records either way."""
        if checked.staged is None:
            return
        if report.applied:
            self.statistics.commit(checked.staged)
        if self._audit is not None:
            version = ANALYSIS_PROMPT_VERSION[self.algorithm.skill.prompt_profile]
            self._audit.write_transcripts(step, evidence_transcripts(checked.records))
            self._audit.write_step(
                step,
                audit_records(
                    step, checked.records, checked.results, prompt_version=version, run_seed=self.settings.seed
                ),
            )
            self._audit.write_statistics(step, self.statistics, committed=report.applied)

    def leave_out_bad_tasks(self, records: list[TaskRecord]) -> int:
        """Tasks that can never be played are not drawn again. Returns how many there are by now."""
        self._sampler.leave_out(
            record.task.task_id for record in records if any(episode.bad_task for episode in record.episodes)
        )
        return len(self._sampler.left_out)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "tasks": self._sampler.digest(),
            "tasks_left_out": self._sampler.left_out,
            "statistics": self.statistics.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["tasks"] != self._sampler.digest():
            raise TrainingFault(
                "the training tasks are not those of the checkpoint: restore the data, or start another run"
            )
        super().load_state_dict(state)
        self._sampler.leave_out(state["tasks_left_out"])
        self.statistics.load_state_dict(state["statistics"])


def _check_outcome(record: TaskRecord) -> CheckOutcome:
    def played(episodes: Sequence[Episode]) -> list[EpisodeOutcome]:
        return [EpisodeOutcome(episode.status, episode.success, episode.num_turns) for episode in episodes]

    control = [record.episodes[index] for index in record.split.control]
    return CheckOutcome(
        task_type=record.task.task_type,
        control=played(control),
        replays=played(record.replays),
        has_evidence=record.evidence_index is not None,
        skill_valid=None if record.rewrite is None else record.rewrite.valid,
        state_matched=record.state_matched,
    )
