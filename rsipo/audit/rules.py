"""What must hold of a task's raw outcomes, whatever the estimates: roles, evidence, replays, fingerprints, mask."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from typing import Any

from rsipo.audit.records import ReplayRecord, RolloutRecord, SkillRecord, TaskRecord
from rsipo.settings import CheckSettings

Violation = tuple[str, Any, Any]
"""(field, recorded value, what it must be)."""


def violations(record: TaskRecord, settings: CheckSettings) -> Iterator[Violation]:
    """Every broken rule of one task."""
    yield from _rollouts(record, settings)
    yield from _split(record)
    yield from _evidence(record)
    yield from _skill(record)
    yield from _replays(record, settings)


def _rollouts(record: TaskRecord, settings: CheckSettings) -> Iterator[Violation]:
    count = len(record.rollouts)
    if count != settings.num_rollouts:
        yield "rollouts", f"{count} rollouts", f"{settings.num_rollouts}"
    evidence = sum(rollout.role == "evidence" for rollout in record.rollouts)
    if 2 * evidence != count:
        yield "rollouts[].role", f"{evidence} evidence, {count - evidence} control", "half and half"
    start = _start(record)
    for position, rollout in enumerate(record.rollouts):
        field = f"rollouts[{position}]"
        if rollout.index != position:
            yield f"{field}.index", rollout.index, position
        if not 0 <= rollout.invalid_actions <= rollout.turns:
            yield f"{field}.invalid_actions", rollout.invalid_actions, f"0 to {rollout.turns}"
        if rollout.fingerprint != start and (rollout.fingerprint is not None or rollout.status == "ok"):
            yield f"{field}.fingerprint", rollout.fingerprint, f"{start}, as the group's"
        yield from _episode(field, rollout, settings)


def _split(record: TaskRecord) -> Iterator[Violation]:
    """The rollouts in the order of G numbers drawn from (run seed, step, task id): the first half is evidence."""
    if record.run_seed is None:
        return
    key = f"[{record.run_seed}, {record.step}, {json.dumps(record.task_id)}]"
    draw = random.Random(int(hashlib.sha256(key.encode()).hexdigest(), 16))
    ranked = sorted((draw.random(), rollout.index) for rollout in record.rollouts)
    drawn = [index for _, index in ranked[: len(ranked) // 2]]
    if record.evidence_order != drawn:
        yield "evidence_order", record.evidence_order, f"{drawn}, as drawn from the run seed"
    roles = [rollout.index for rollout in record.rollouts if rollout.role == "evidence"]
    if sorted(roles) != sorted(drawn):
        yield "rollouts[].role", f"evidence {roles}", f"evidence {sorted(drawn)}, as drawn from the run seed"


def _episode(field: str, episode: RolloutRecord | ReplayRecord, settings: CheckSettings) -> Iterator[Violation]:
    fewest = 1 if episode.status == "ok" else 0
    if not fewest <= episode.turns <= settings.max_turns:
        yield f"{field}.turns", episode.turns, f"{fewest} to {settings.max_turns}"
    if episode.success and episode.status != "ok":
        yield f"{field}.success", True, f"false, as the status is {episode.status}"


def _evidence(record: TaskRecord) -> Iterator[Violation]:
    usable = [r for r in record.rollouts if r.role == "evidence" and r.status == "ok"]
    allowed = [r.index for r in usable if r.success] or [r.index for r in usable]
    if record.evidence_order is not None:
        allowed = [index for index in record.evidence_order if index in allowed][:1]
    if not allowed and record.evidence_index is not None:
        yield "evidence_index", record.evidence_index, "null, as no evidence rollout is usable"
    if allowed and record.evidence_index not in allowed:
        yield (
            "evidence_index",
            record.evidence_index,
            f"one of {allowed} (usable evidence, successes first, then by evidence_order)",
        )
    if record.evidence_index is None and record.skill is not None:
        yield "skill", "a skill", "null without evidence"


def _skill(record: TaskRecord) -> Iterator[Violation]:
    skill: SkillRecord | None = record.skill
    if skill is None:
        return
    if skill.valid and not (skill.text or "").strip():
        yield "skill.text", skill.text, "not empty in a valid skill"
    if skill.valid and not 1 <= skill.masked_tokens <= skill.tokens:
        yield "skill.masked_tokens", skill.masked_tokens, f"1 to {skill.tokens}"
    if not skill.valid and skill.masked_tokens != skill.tokens:
        yield "skill.masked_tokens", skill.masked_tokens, f"{skill.tokens}: all tokens of an invalid output"
    if skill.valid == bool(skill.reason):
        yield "skill.reason", skill.reason, "empty" if skill.valid else "why the skill is invalid"


def _replays(record: TaskRecord, settings: CheckSettings) -> Iterator[Violation]:
    expected = settings.num_replays if record.skill is not None and record.skill.valid else 0
    if len(record.replays) != expected:
        yield "replays", f"{len(record.replays)} replays", f"{expected}"
    start = _start(record)
    for position, replay in enumerate(record.replays):
        field = f"replays[{position}]"
        yield from _episode(field, replay, settings)
        matched = None if replay.fingerprint is None else replay.fingerprint == start
        if replay.state_matched != matched:
            yield f"{field}.state_matched", replay.state_matched, matched
        if matched is None and replay.status == "ok":
            yield f"{field}.fingerprint", None, "the initial state's"
    known = [replay.state_matched for replay in record.replays if replay.state_matched is not None]
    matched = all(known) if known else None
    if record.state_matched != matched:
        yield "state_matched", record.state_matched, matched


def _start(record: TaskRecord) -> str | None:
    """The initial state's fingerprint: what most of the rollouts report."""
    seen = [rollout.fingerprint for rollout in record.rollouts if rollout.fingerprint is not None]
    return max(seen, key=seen.count) if seen else None
