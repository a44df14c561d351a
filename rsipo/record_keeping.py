"""What a step's task records say: metrics for the log, and the records of the audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from agent_system.environments.base import EnvironmentSpec
from agent_system.rollout.types import Episode
from rsipo.audit import records as audit
from rsipo.estimators import CheckResult
from rsipo.execution_check import TaskRecord
from verl_ext.trainer import TurnSample

Metrics = dict[str, Any]

_ROUNDING = 1e-9  # a gain that equals its type mean leaves a reward of about 1e-17


def success_metrics(prefix: str, played: Iterable[tuple[str, Episode]]) -> Metrics:
    """Success rate over the episodes that were not lost, in all and per task type, always with counts."""
    played = list(played)
    usable = [(task_type, episode) for task_type, episode in played if episode.status == "ok"]
    metrics: Metrics = {
        f"{prefix}/episodes": len(usable),
        f"{prefix}/lost": len(played) - len(usable),
        f"{prefix}/cut_short": sum(bool(episode.error) for _, episode in usable),
    }
    if not usable:
        return metrics
    turns = [turn for _, episode in usable for turn in episode.turns]
    metrics |= {
        f"{prefix}/success": fmean(episode.success for _, episode in usable),
        f"{prefix}/turns": fmean(episode.num_turns for _, episode in usable),
        f"{prefix}/valid_actions": fmean(turn.action_valid for turn in turns) if turns else 0.0,
        f"{prefix}/admissible_actions": fmean(turn.admissible for turn in turns) if turns else 0.0,
    }
    for name in sorted({task_type for task_type, _ in usable}):
        group = [episode for task_type, episode in usable if task_type == name]
        metrics[f"{prefix}/success/{name}"] = fmean(episode.success for episode in group)
        metrics[f"{prefix}/episodes/{name}"] = len(group)
    return metrics


def lost_episodes(records: Sequence[TaskRecord]) -> tuple[int, int, str]:
    """(lost, played, the commonest reason) of a step's rollouts and replays."""
    played = [episode for record in records for episode in (*record.episodes, *record.replays)]
    reasons = Counter(episode.error for episode in played if episode.status != "ok")
    return reasons.total(), len(played), reasons.most_common(1)[0][0] if reasons else ""


def rollout_metrics(records: Sequence[TaskRecord], spec: EnvironmentSpec) -> Metrics:
    """The student's rollouts, the skills written from them, and the time a task took."""
    played = [(record.task.task_type, episode) for record in records for episode in record.episodes]
    metrics = success_metrics("student", played)
    rewards = [spec.success_reward * episode.success for _, episode in played if episode.status == "ok"]
    metrics["student/reward"] = fmean(rewards) if rewards else 0.0
    metrics["skill/lost"] = sum(len(record.errors) for record in records)
    written = [skill for record in records for skill in record.skills if skill is not None]
    if written:
        metrics |= {
            "skill/written": len(written),
            "skill/valid": fmean(skill.valid for skill in written),
            "skill/leaks": sum(skill.leaks_answer for skill in written),
            "skill/tokens": fmean(len(skill.response_ids) for skill in written),
        }
    return metrics


def distillation_metrics(turns: Sequence[TurnSample], sharpness: float) -> Metrics:
    """How the teacher scores the student's tokens before the update: gap, gate, and the share it has a word on."""
    taught = [turn.sample for turn in turns if turn.sample.scalars["has_teacher"]]
    metrics: Metrics = {"teacher/turn_share": len(taught) / max(1, len(turns))}
    if taught:
        gaps = np.concatenate([sample.tokens["teacher_log_prob"] - sample.tokens["old_log_probs"] for sample in taught])
        metrics |= {
            "teacher/gap_mean": float(gaps.mean()),
            "teacher/gap_abs": float(np.abs(gaps).mean()),
            "teacher/gate": float((1 / (1 + np.exp(-sharpness * gaps))).mean()),
        }
    return metrics


def check_metrics(records: Sequence[TaskRecord], results: Sequence[CheckResult | None]) -> Metrics:
    """The funnel of the execution check, and gains, type means, trust and skill rewards."""
    checked = [(record, result) for record, result in zip(records, results, strict=True) if result is not None]
    if not checked:
        return {}
    rewritten = [record for record, _ in checked if record.rewrite is not None]
    valid = [record for record in rewritten if record.rewrite is not None and record.rewrite.valid]
    metrics: Metrics = {
        "funnel/tasks": len(checked),
        "funnel/rollouts": sum(episode.status == "ok" for record, _ in checked for episode in record.episodes),
        "funnel/evidence": sum(record.evidence_index is not None for record, _ in checked),
        "funnel/skill_parsed": sum(record.rewrite is not None and bool(record.rewrite.skill) for record in rewritten),
        "funnel/skill_valid": len(valid),
        "check/skill_leaks": sum(record.rewrite is not None and record.rewrite.leaks_answer for record in rewritten),
        "funnel/replayed": sum(any(replay.status == "ok" for replay in record.replays) for record, _ in checked),
        "funnel/state_matched": sum(record.state_matched is True for record, _ in checked),
        "funnel/rewarded": sum(abs(result.skill_reward) > _ROUNDING for _, result in checked),
    }
    metrics |= success_metrics(
        "teacher", ((record.task.task_type, replay) for record, _ in checked for replay in record.replays)
    )
    columns: dict[str, list[float | None]] = {
        "gain": [result.gain for _, result in checked],
        "noise_variance": [result.noise_variance for _, result in checked],
        "shrinkage_weight": [result.shrinkage_weight for _, result in checked],
        "shrunk_gain": [result.shrunk_gain for _, result in checked],
        "skill_reward": [result.skill_reward for _, result in checked],
        "trust": [result.trust for _, result in checked],
    }
    for name, column in columns.items():
        values = [value for value in column if value is not None]
        if values:
            metrics[f"check/{name}"] = fmean(values)
    trusts = [result.trust for _, result in checked]
    metrics |= {f"check/trust_p{share}": float(np.percentile(trusts, share)) for share in (0, 10, 50, 90, 100)}
    for record, result in checked:
        metrics[f"check/type_mean/{record.task.task_type}"] = result.type_mean
    return metrics


def audit_records(
    step: int,
    records: Sequence[TaskRecord],
    results: Sequence[CheckResult | None],
    *,
    prompt_version: str,
    run_seed: int,
) -> list[audit.TaskRecord]:
    """One audit record per task: the raw outcomes and what was estimated from them."""
    return [
        _audit_record(step, record, result, prompt_version, run_seed)
        for record, result in zip(records, results, strict=True)
        if result is not None
    ]


def evidence_transcripts(records: Sequence[TaskRecord]) -> list[audit.TranscriptRecord]:
    """What was seen and done in each task's evidence trajectory."""
    chosen = [
        (record.task.task_id, record.episodes[i]) for record in records if (i := record.evidence_index) is not None
    ]
    return [
        audit.TranscriptRecord(
            task_id=task_id,
            index=episode.index,
            instruction=episode.instruction,
            turns=[
                audit.TurnRecord(
                    observation=turn.context.observation.text,
                    action=turn.action,
                    valid=turn.action_valid,
                    admissible=turn.admissible,
                )
                for turn in episode.turns
            ],
            final_observation=episode.final_observation,
            success=episode.success,
        )
        for task_id, episode in chosen
    ]


def _audit_record(
    step: int, record: TaskRecord, result: CheckResult, prompt_version: str, run_seed: int
) -> audit.TaskRecord:
    rollouts = [
        audit.RolloutRecord(
            index=episode.index,
            role=record.split.role(episode.index),
            status=episode.status,
            success=episode.success,
            turns=episode.num_turns,
            invalid_actions=episode.invalid_actions,
            fingerprint=episode.fingerprint or None,
            skill_valid=None if skill is None else skill.valid,
            skill_leaks=None if skill is None else skill.leaks_answer,
        )
        for episode, skill in zip(record.episodes, record.skills, strict=True)
    ]
    written = record.rewrite
    skill = None
    if written is not None:
        skill = audit.SkillRecord(
            text=written.skill or None,
            valid=written.valid,
            reason=written.reason,
            tokens=len(written.response_ids),
            masked_tokens=int(written.mask.sum()),
            leaks_answer=written.leaks_answer,
        )
    replays = [
        audit.ReplayRecord(
            status=replay.status,
            success=replay.success,
            turns=replay.num_turns,
            fingerprint=replay.fingerprint or None,
            state_matched=matched,
        )
        for replay, matched in zip(record.replays, record.replay_matched, strict=True)
    ]
    return audit.TaskRecord(
        step=step,
        task_id=record.task.task_id,
        task_type=record.task.task_type,
        rollouts=rollouts,
        evidence_index=record.evidence_index,
        skill=skill,
        replays=replays,
        state_matched=record.state_matched,
        gain=result.gain,
        noise_variance=result.noise_variance,
        type_mean=result.type_mean,
        type_variance=result.type_variance,
        shrinkage_weight=result.shrinkage_weight,
        shrunk_gain=result.shrunk_gain,
        skill_reward=result.skill_reward,
        trust=result.trust,
        analysis_prompt_version=prompt_version,
        run_seed=run_seed,
        evidence_order=list(record.split.evidence),
    )
