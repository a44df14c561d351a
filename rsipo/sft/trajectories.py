"""``trajectories.jsonl.gz``: the base model plays every sampled task, as it would be evaluated but on training tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from agent_system.environments.base import Observation, PromptContext
from agent_system.rollout.types import Episode, Generation, Turn
from rsipo.evaluation.episodes import EpisodeLog, Key
from rsipo.evaluation.panel import Panel
from rsipo.evaluation.playing import check_playable
from rsipo.evaluation.run import EvaluationFiles, run_evaluation
from rsipo.problems import UserError
from rsipo.record_lines import write_records
from rsipo.sft.layout import SftFiles
from rsipo.sft.setup import Setup
from rsipo.sft.tasks import SPLIT, sampled_tasks


def collect(setup: Setup, files: SftFiles, *, allow_lost: bool) -> int:
    """Play what is not played yet and write the trajectories; returns their number.

    Args:
        allow_lost: leave out the episodes that the infrastructure lost again and again, instead of stopping.

    Raises:
        UserError: the folder holds other rollouts, episodes were lost, or a fault that the user can act on.
    """
    tasks = sorted(sampled_tasks(files, setup.spec), key=lambda task: task.task_id)
    panel = Panel(setup.benchmark, {SPLIT: tasks})
    check_playable(setup.subject, setup.settings)
    run_evaluation(setup.subject, setup.settings, setup.spec, panel, files.rollouts)
    log = EpisodeLog(EvaluationFiles(files.rollouts).episodes)
    lost = [key for key, outcome in log.outcomes.items() if outcome.lost]
    if lost and not allow_lost:
        raise UserError(
            f"{len(lost)} of {len(log.outcomes)} episodes were lost, such as of {lost[0].task_id}: the same command plays "
            "them again, --allow-lost leaves them out"
        )
    seeds = {seed: number for number, seed in enumerate(setup.settings.panel.seeds)}
    order = [
        Key(SPLIT, seed, task.task_id)
        for task in tasks
        for seed in seeds
        if not log.outcomes[Key(SPLIT, seed, task.task_id)].lost
    ]
    return write_records(
        files.trajectories, (trajectory_record(row, seeds[row["seed"]]) for row in _episodes(log, order))
    )


def _episodes(log: EpisodeLog, order: list[Key]) -> Iterator[dict[str, Any]]:
    """The log's rows in the given order, the later one of two; only one of them is in memory at a time."""
    places: dict[Key, int] = {}
    with log.path.open("rb") as file:
        place = 0
        for line in file:
            row = json.loads(line)
            places[Key(row["split"], row["seed"], row["task_id"])] = place
            place += len(line)
        for key in order:
            file.seek(places[key])
            yield json.loads(file.readline())


def trajectory_record(row: Mapping[str, Any], rollout: int) -> dict[str, Any]:
    """An episode's row, as evaluations log it, without what differs between two playings of it (its duration).

    Args:
        rollout: its number among those of its task, from 0.
    """
    return {
        "trajectory_id": f"{row['task_id']}:{rollout}",
        "task_id": row["task_id"],
        "task_type": row["task_type"],
        "rollout": rollout,
        "seed": row["seed"],
        "success": row["success"],
        "final_task_score": float(row["success"]),
        "num_steps": row["turns"],
        "invalid_actions": row["invalid_actions"],
        "inadmissible_actions": row["inadmissible_actions"],
        "error": row["error"],
        "fingerprint": row["fingerprint"],
        "instruction": row["instruction"],
        "steps": [
            {
                "observation": turn["observation"],
                "admissible_actions": turn["admissible_actions"],
                "response": turn["response"],
                "action": turn["action"],
                "valid": turn["valid"],
                "admissible": turn["admissible"],
            }
            for turn in row["transcript"]
        ],
        "final_observation": row["final_observation"],
    }


def as_episode(record: Mapping[str, Any]) -> Episode:
    """The episode of a trajectory, as far as its analysis needs it: without token ids and history."""
    none = np.empty(0, dtype=np.int32)
    instruction = str(record["instruction"])
    turns = [
        Turn(
            PromptContext(instruction, Observation(step["observation"], tuple(step["admissible_actions"]))),
            Generation(none, none, np.empty(0, dtype=np.float32), step["response"], finished=True),
            step["action"],
            step["valid"],
            step["admissible"],
        )
        for step in record["steps"]
    ]
    return Episode(
        record["task_id"],
        record["rollout"],
        "ok",
        record["success"],
        turns,
        record["fingerprint"],
        instruction,
        record["final_observation"],
    )
