"""SYNTHETIC runs: random outcomes, but written by the real audit writer from the project's own estimators.

Skills turn from format and recovery advice into procedures, and help more and more, so that every figure has something to show.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from rsipo.audit.records import (
    AuditWriter,
    ReplayRecord,
    RolloutRecord,
    SkillRecord,
    TaskRecord,
    TranscriptRecord,
    TurnRecord,
)
from rsipo.estimators import CheckOutcome, TypeStatistics, evaluate_checks
from rsipo.settings import CheckSettings
from rsipo.split import choose_evidence, split

SETTINGS = CheckSettings(max_turns=50)
TYPES = {
    "look_at_obj_in_light": 0.7,
    "pick_and_place_simple": 0.8,
    "pick_clean_then_place_in_recep": 0.5,
    "pick_cool_then_place_in_recep": 0.45,
    "pick_heat_then_place_in_recep": 0.4,
    "pick_two_obj_and_place": 0.25,
}
SKILLS = {
    "format": "Check the exact command syntax before acting: copy one of the admissible actions verbatim.",
    "recovery": "If 'Nothing happens', do not repeat the action. Look around again and try another object.",
    "procedure": (
        "1. List the places where {thing} is usually kept.\n2. Visit the nearest first and open what is closed.\n"
        "3. Take {thing} and verify that it is in hand.\n4. Go to the target and put it down."
    ),
    "other": "Kitchens keep {thing} near the sink more often than not.",
}
HOSTILE = '</script><script>window.broken = true</script><img src=x onerror="window.broken = true"> & $x_1$ "quoted"'
"""A skill, an observation and an action of some tasks."""


def draw_task(
    draw: random.Random, step: int, steps: int, number: int, hostile: bool
) -> tuple[dict, TranscriptRecord | None]:
    """The raw outcome of one task, and its evidence trajectory."""
    progress = step / steps
    task_type = draw.choice(list(TYPES))
    task_id = f"json_2.1.1/train/{task_type}-Mug-None-Shelf-{number % 430}/trial_S{step:03d}_{number:05d}/game.tw-pddl"
    student = min(0.97, TYPES[task_type] * (0.6 + 0.6 * progress))
    kind = draw.choices(list(SKILLS), (3 - 2.8 * progress, 2 - 1.8 * progress, 0.4 + 9 * progress, 0.5))[0]
    teacher = min(0.99, max(0.02, student + draw.gauss({"procedure": 0.12, "other": 0.0}.get(kind, -0.08), 0.2)))
    start = f"{draw.getrandbits(256):064x}"

    def episode(chance: float) -> dict:
        status = "ok" if draw.random() > 0.01 else draw.choice(["failed", "timeout"])
        success = status == "ok" and draw.random() < chance
        return {"status": status, "success": success, "turns": draw.randint(6, 40) if success else 50}

    parts = split(SETTINGS.num_rollouts, seed=0, step=step, task_id=task_id)
    rollouts = []
    for index in range(SETTINGS.num_rollouts):
        played = episode(student)
        invalid = min(played["turns"], draw.choice([0, 0, 0, 1, 2]))
        own = {"invalid_actions": invalid, "fingerprint": start, "skill_valid": True}
        rollouts.append(RolloutRecord(index=index, role=parts.role(index), **own, **played))
    chosen = choose_evidence(parts, rollouts)
    skill, replays = None, []
    if chosen is not None and draw.random() < 0.98:
        valid = draw.random() < 0.85 + 0.14 * progress
        text = HOSTILE if hostile else SKILLS[kind].format(thing=draw.choice(["the mug", "the plate", "the apple"]))
        reason = "" if valid else draw.choice(["no_json", "cut_off", "too_short"])
        skill = SkillRecord(
            text=text if valid else None, valid=valid, reason=reason, tokens=90, masked_tokens=40 if valid else 90
        )
        found = start if draw.random() < 0.995 else "e" * 64
        for _ in range(SETTINGS.num_replays if valid else 0):
            replays.append(ReplayRecord(fingerprint=found, state_matched=found == start, **episode(teacher)))
    known = [replay.state_matched for replay in replays if replay.state_matched is not None]
    raw = {
        "step": step,
        "task_id": task_id,
        "task_type": task_type,
        "rollouts": rollouts,
        "evidence_index": chosen,
        "skill": skill,
        "replays": replays,
        "state_matched": all(known) if known else None,
        "analysis_prompt_version": "analysis-full-1",
        "run_seed": 0,
        "evidence_order": list(parts.evidence),
    }
    if chosen is None:
        return raw, None
    turns = [
        TurnRecord(
            observation=HOSTILE
            if hostile
            else f"You arrive at shelf {turn}. On the shelf {turn}, you see a book {turn}.",
            action=HOSTILE if hostile else f"go to shelf {turn + 1}",
            valid=turn != 3,
            admissible=turn not in (3, 5),
        )
        for turn in range(1, rollouts[chosen].turns + 1)
    ]
    transcript = TranscriptRecord(
        task_id=task_id,
        index=chosen,
        instruction=f"put a mug on the shelf ({task_type})",
        turns=turns,
        final_observation="You put the mug 1 in/on the shelf 1.",
        success=rollouts[chosen].success,
    )
    return raw, transcript


def outcome(raw: dict) -> CheckOutcome:
    control = [rollout for rollout in raw["rollouts"] if rollout.role == "control"]
    valid = None if raw["skill"] is None else raw["skill"].valid
    return CheckOutcome(
        raw["task_type"], control, raw["replays"], raw["evidence_index"] is not None, valid, raw["state_matched"]
    )


def step_metrics(records: list[TaskRecord], draw: random.Random, progress: float) -> dict:
    """The metrics the report reads, those of the check from the records, the others drawn."""
    played = [rollout for record in records for rollout in record.rollouts if rollout.status == "ok"]
    replays = [replay for record in records for replay in record.replays if replay.status == "ok"]
    trust = sorted(record.trust for record in records)
    return {
        "student/success": fmean(rollout.success for rollout in played),
        "teacher/success": fmean(replay.success for replay in replays),
        "opsd/loss": 0.02 + 0.02 * (1 - progress) * draw.uniform(0.7, 1.3),
        "skill/valid": fmean(record.skill is not None and record.skill.valid for record in records),
        "check/gain": fmean(record.gain for record in records if record.gain is not None),
        "check/trust": fmean(trust),
        "check/trust_p10": trust[len(trust) // 10],
        "check/trust_p90": trust[-1 - len(trust) // 10],
        "update/applied": True,
        "seconds/rollouts": draw.uniform(80, 120),
        "seconds/log_probs": draw.uniform(8, 10),
        "seconds/teacher": draw.uniform(6, 8),
        "seconds/update": draw.uniform(35, 45),
        "seconds/weight_sync": 2.0,
    }


def write_synthetic_run(
    root: Path, *, steps: int, tasks: int, seed: int = 0, transcripts: bool = True, hostile: bool = False, **method: str
) -> Path:
    """A SYNTHETIC run of ``steps`` steps with ``tasks`` tasks each. ``method`` overrides the settings of RSIPO."""
    draw = random.Random(seed)
    writer = AuditWriter(root / "rsipo-audit", SETTINGS)
    statistics = TypeStatistics(SETTINGS.eta)
    rows = [{"step": 0, "evaluation/success": 0.3}]
    for step in range(1, steps + 1):
        drawn = [draw_task(draw, step, steps, number, hostile and number % 3 == 0) for number in range(tasks)]
        results, staged = evaluate_checks([outcome(raw) for raw, _ in drawn], statistics, SETTINGS)
        statistics.commit(staged)
        records = [
            TaskRecord(**raw, **dataclasses.asdict(result)) for (raw, _), result in zip(drawn, results, strict=True)
        ]
        if transcripts:
            writer.write_transcripts(step, [transcript for _, transcript in drawn if transcript is not None])
        writer.write_step(step, records)
        writer.write_statistics(step, statistics, committed=True)
        metrics = {"step": step} | step_metrics(records, draw, step / steps)
        if step % max(1, steps // 4) == 0:
            metrics |= {"evaluation/success": 0.3 + 0.6 * step / steps, "seconds/evaluation": 60.0}
        rows.append(metrics)
    main = root / "rsipo"
    main.mkdir(parents=True)
    (main / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "name": "rsipo",
        "distillation": "gated",
        "trust": "shrunk_gain",
        "skill_reward": "replay_gain",
    } | method
    config = {"method": settings, "training": {"steps": steps, "tasks_per_step": tasks}, "check": SETTINGS.model_dump()}
    (main / "config.yaml").write_text(yaml.safe_dump(config))
    return root


@pytest.fixture(scope="session")
def synthetic() -> Callable[..., Path]:
    """``write_synthetic_run``."""
    return write_synthetic_run


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SYNTHETIC: six steps of ten tasks, some with markup for skill, observation and action. Not to be changed."""
    return write_synthetic_run(tmp_path_factory.mktemp("runs") / "small", steps=6, tasks=10, hostile=True)


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a method without an execution check: metrics only."""
    main = tmp_path_factory.mktemp("runs") / "grpo" / "rsipo"
    main.mkdir(parents=True)
    rows = [{"step": step, "student/success": 0.1 * step, "seconds/update": 3.0} for step in range(1, 5)]
    (main / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    off = {"name": "grpo", "distillation": "none", "trust": "one", "skill_reward": "none"}
    (main / "config.yaml").write_text(yaml.safe_dump({"method": off}))
    return main.parent
