"""A small audit folder, written by the real writer from real estimates of random outcomes."""

from __future__ import annotations

import dataclasses
import random
import shutil
from pathlib import Path

import pytest

from rsipo.audit.records import AuditWriter, ReplayRecord, RolloutRecord, SkillRecord, TaskRecord
from rsipo.estimators import CheckOutcome, TypeStatistics, evaluate_checks
from rsipo.settings import CheckSettings
from rsipo.split import choose_evidence, split

SETTINGS = CheckSettings(max_turns=20, num_rollouts=4, num_replays=3, format_reward=0.05)
TASKS = 12


def raw_task(draw: random.Random, step: int, number: int) -> dict:
    """The raw outcomes of one task, as the execution check would record them."""
    task_id = f"game-{number}"
    start = f"{number:064x}"
    lost = draw.choice([0.0, 0.0, 0.4])  # some tasks run on a sick machine
    student, teacher = draw.choice([(0.1, 0.9), (0.5, 0.5), (0.9, 0.1)])

    def episode(chance: float) -> dict:
        status = draw.choice(["failed", "timeout"]) if draw.random() < lost else "ok"
        turns = draw.randint(2, 20)
        return {"status": status, "success": status == "ok" and draw.random() < chance, "turns": turns}

    parts = split(4, seed=0, step=step, task_id=task_id)
    rollouts = [
        RolloutRecord(
            index=index,
            role=parts.role(index),
            invalid_actions=draw.randint(0, 1),
            fingerprint=start,
            skill_valid=draw.choice([True, False]),
            **episode(student),
        )
        for index in range(4)
    ]
    chosen = choose_evidence(parts, rollouts)
    skill, replays = None, []
    if chosen is not None and draw.random() < 0.95:
        valid = draw.random() < 0.8
        skill = SkillRecord(
            text="Look in the cabinet first." if valid else None,
            valid=valid,
            reason="" if valid else "no_json",
            tokens=40,
            masked_tokens=9 if valid else 40,
        )
        if valid:
            found = start if draw.random() < 0.85 else "e" * 64
            for _ in range(3):
                played = episode(teacher)
                fingerprint = found if played["status"] == "ok" or draw.random() < 0.5 else None
                matched = None if fingerprint is None else fingerprint == start
                replays.append(ReplayRecord(fingerprint=fingerprint, state_matched=matched, **played))
    known = [replay.state_matched for replay in replays if replay.state_matched is not None]
    return {
        "step": step,
        "task_id": task_id,
        "task_type": draw.choice(["pick", "heat"]),
        "rollouts": rollouts,
        "evidence_index": chosen,
        "skill": skill,
        "replays": replays,
        "state_matched": all(known) if known else None,
        "run_seed": 0,
        "evidence_order": list(parts.evidence),
    }


def write_run(root: Path, *, steps: int = 4, uncommitted: tuple[int, ...] = (3,), seed: int = 2) -> Path:
    draw = random.Random(seed)
    audit = root / "rsipo-audit"
    writer = AuditWriter(audit, SETTINGS)
    statistics = TypeStatistics(SETTINGS.eta)
    for step in range(1, steps + 1):
        raw = [raw_task(draw, step, number) for number in range(TASKS)]
        outcomes = [
            CheckOutcome(
                task["task_type"],
                [rollout for rollout in task["rollouts"] if rollout.role == "control"],
                task["replays"],
                task["evidence_index"] is not None,
                None if task["skill"] is None else task["skill"].valid,
                task["state_matched"],
            )
            for task in raw
        ]
        results, staged = evaluate_checks(outcomes, statistics, SETTINGS)
        if step not in uncommitted:
            statistics.commit(staged)
        records = [TaskRecord(**task, **dataclasses.asdict(result)) for task, result in zip(raw, results, strict=True)]
        writer.write_step(step, records)
        writer.write_statistics(step, statistics, committed=step not in uncommitted)
    return audit


@pytest.fixture(scope="session")
def written(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("written"))


@pytest.fixture
def audit(written, tmp_path) -> Path:
    """Four steps of twelve tasks; the third step's update failed, so its statistics were not committed."""
    return Path(shutil.copytree(written, tmp_path / "rsipo-audit"))


@pytest.fixture(scope="session")
def settings() -> CheckSettings:
    return SETTINGS
