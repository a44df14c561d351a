"""``episodes.jsonl``: every episode with its transcript, appended as it ends, and read back to go on after a stop."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_system.environments.base import Task
from agent_system.rollout.types import Episode, Turn
from rsipo.problems import UserError


@dataclass(frozen=True, order=True, slots=True)
class Key:
    """Which episode: a split's task in the round of a seed."""

    split: str
    seed: int
    task_id: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the statistics need of an episode. ``cut_short``: its next prompt did not fit, so it ended unsuccessful."""

    status: str
    success: bool
    turns: int
    invalid_actions: int
    inadmissible_actions: int
    cut_short: bool

    @property
    def lost(self) -> bool:
        """The infrastructure lost it: a fault or a deadline, no verdict on the policy."""
        return self.status != "ok"


def episode_record(key: Key, task: Task, episode: Episode) -> dict[str, Any]:
    """The JSON object of one episode. ``success`` is what the environment said, and nothing else."""
    return {
        "split": key.split,
        "seed": key.seed,
        "task_id": key.task_id,
        "task_type": task.task_type,
        "status": episode.status,
        "success": episode.success and episode.status == "ok",
        "turns": episode.num_turns,
        "invalid_actions": episode.invalid_actions,
        "inadmissible_actions": sum(not turn.admissible for turn in episode.turns),
        "error": episode.error,
        "seconds": round(episode.seconds, 3),
        "fingerprint": episode.fingerprint,
        "instruction": episode.instruction,
        "extra": dict(episode.extra),
        "transcript": [turn_record(turn) for turn in episode.turns],
        "final_observation": episode.final_observation,
    }


def turn_record(turn: Turn) -> dict[str, Any]:
    """The JSON object of one turn."""
    return {
        "observation": turn.context.observation.text,
        "admissible_actions": list(turn.context.observation.admissible_actions),
        "response": turn.generation.text,
        "action": turn.action,
        "valid": turn.action_valid,
        "admissible": turn.admissible,
        "finished": turn.generation.finished,
        "prompt_tokens": len(turn.generation.prompt_ids),
        "response_tokens": len(turn.generation.response_ids),
    }


class EpisodeLog:
    """The episodes of one evaluation.

    An episode that was lost has a line too; when it is played again, its later line counts.

    Args:
        path: of the JSON lines file. A last line that a stop cut off is removed from it.

    Raises:
        UserError: a line in the middle is no episode.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[Key, Outcome] = {}
        if path.exists():
            self._read()

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one episode, on disk before this returns."""
        line = json.dumps(record, ensure_ascii=False) + "\n"
        with self.path.open("ab") as file:
            file.write(line.encode("utf-8", "backslashreplace"))  # a response may hold half a surrogate pair
            file.flush()
            os.fsync(file.fileno())
        self._take(record)

    def _read(self) -> None:
        with self.path.open("rb+") as file:
            good = 0
            for number, line in enumerate(file, start=1):
                try:
                    if not line.endswith(b"\n"):
                        raise ValueError("cut off")
                    self._take(json.loads(line))
                except (ValueError, KeyError, TypeError) as error:
                    if file.read(1):
                        raise UserError(
                            f"{self.path} line {number} is no episode ({error}); remove that line: its episode is played again"
                        ) from error
                    break
                good += len(line)
            file.truncate(good)

    def _take(self, record: Mapping[str, Any]) -> None:
        key = Key(str(record["split"]), int(record["seed"]), str(record["task_id"]))
        self.outcomes[key] = Outcome(
            status=str(record["status"]),
            success=bool(record["success"]),
            turns=int(record["turns"]),
            invalid_actions=int(record["invalid_actions"]),
            inadmissible_actions=int(record["inadmissible_actions"]),
            cut_short=record["status"] == "ok" and bool(record["error"]),
        )
