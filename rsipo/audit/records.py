"""The audit trail of the execution check: what every task's check saw, and what was estimated from it.

One folder, ``rsipo-audit``: ``settings.json``, one ``step-000001.jsonl`` per step with a line per task, and
``statistics.jsonl`` with a line per step. ``rsipo audit verify`` recomputes all of it. Beside them, for reading only, one
``transcripts-000001.jsonl.gz`` per step with the evidence trajectories.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from agent_system.files import file_sha256, write_atomically
from rsipo.problems import UserError
from rsipo.settings import CheckSettings

SETTINGS_FILE = "settings.json"
STATISTICS_FILE = "statistics.jsonl"


class Record(BaseModel):
    """Base of all records: exact types, finite numbers; further fields are kept."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow", allow_inf_nan=False)


class RolloutRecord(Record):
    """One student episode. ``skill_valid`` is that of its own skill, None where none was asked for.

    ``skill_leaks``: whether that skill holds a gold answer (search).
    """

    index: int
    role: Literal["evidence", "control"]
    status: Literal["ok", "failed", "timeout"]
    success: bool
    turns: int
    invalid_actions: int
    fingerprint: str | None
    skill_valid: bool | None
    skill_leaks: bool | None = None


class SkillRecord(Record):
    """The rewritten skill; ``text`` None where none could be read. ``tokens`` counts the whole response.

    ``leaks_answer``: whether it holds a gold answer (search).
    """

    text: str | None
    valid: bool
    reason: str
    tokens: int
    masked_tokens: int
    leaks_answer: bool | None = None


class ReplayRecord(Record):
    """One teacher episode. ``fingerprint`` and ``state_matched`` are None where it was lost before it began."""

    status: Literal["ok", "failed", "timeout"]
    success: bool
    turns: int
    fingerprint: str | None
    state_matched: bool | None


class TaskRecord(Record):
    """One task of one step: the raw outcomes, then the estimates (None where not defined).

    ``analysis_prompt_version`` names the template the skills were asked with. The split of the rollouts follows from
    ``run_seed``, ``step`` and ``task_id``; ``evidence_order`` is the random order that decides between equal evidence.
    """

    step: int
    task_id: str
    task_type: str
    rollouts: list[RolloutRecord]
    evidence_index: int | None
    skill: SkillRecord | None
    replays: list[ReplayRecord]
    state_matched: bool | None
    gain: float | None
    noise_variance: float | None
    type_mean: float | None
    type_variance: float | None
    shrinkage_weight: float | None
    shrunk_gain: float | None
    skill_reward: float | None
    trust: float | None
    analysis_prompt_version: str | None = None
    run_seed: int | None = None
    evidence_order: list[int] | None = None


class TurnRecord(Record):
    """One turn of a transcript: what was seen, what was done, and whether format and environment accepted it."""

    observation: str
    action: str
    valid: bool
    admissible: bool


class TranscriptRecord(Record):
    """The evidence trajectory of one task: the episode of rollout ``index``, which the checked skill was written from."""

    task_id: str
    index: int
    instruction: str
    turns: list[TurnRecord]
    final_observation: str
    success: bool


class MomentsRecord(Record):
    """The four moving averages of a type, eq. (6)."""

    gain: float
    gain_squared: float
    noise_variance: float
    weight: float


class StatisticsRecord(Record):
    """The statistics after one step. An uncommitted step leaves them as they were.

    ``records_sha256`` and ``settings_sha256`` are of the files ``step-….jsonl`` and ``settings.json``.
    """

    step: int
    committed: bool
    types: dict[str, MomentsRecord]
    records_sha256: str | None = None
    settings_sha256: str | None = None


class Statistics(Protocol):
    """What is written of the statistics; ``rsipo.type_statistics.TypeStatistics`` is one."""

    def state_dict(self) -> Mapping[str, Any]: ...


def step_file(step: int) -> str:
    """Name of a step's file."""
    return f"step-{step:06d}.jsonl"


def step_of(path: Path) -> int | None:
    """The step a file name stands for, None for any other file."""
    digits = path.name.removeprefix("step-").removesuffix(".jsonl")
    return int(digits) if digits.isascii() and digits.isdigit() and path.name == step_file(int(digits)) else None


def transcripts_file(step: int) -> str:
    """Name of a step's file of transcripts."""
    return f"transcripts-{step:06d}.jsonl.gz"


class AuditWriter:
    """Writes the audit folder of one run; one line per task, one per step, each file complete or absent.

    Args:
        directory: made if needed.
        settings: go to ``settings.json``.

    Raises:
        UserError: the folder was written with other settings.
    """

    def __init__(self, directory: Path, settings: CheckSettings) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / SETTINGS_FILE
        content = json.dumps(settings.model_dump(), indent=2) + "\n"
        if path.exists() and path.read_text(encoding="utf-8") != content and self._has_steps():
            raise UserError(f"{path} differs from this run's check settings: resume with those, or start another run")
        write_atomically(path, content)

    def resume_from(self, step: int) -> None:
        """Forget the steps after ``step`` (0: all), which a resumed run does again. Call it before writing any."""
        path = self.directory / STATISTICS_FILE
        if path.exists():
            lines = path.read_text(encoding="utf-8").split("\n")
            kept = [line + "\n" for line in lines if 1 <= _step_of_line(line) <= step]
            write_atomically(path, "".join(kept))
        for file in self.directory.glob("step-*.jsonl"):
            if (number := step_of(file) or 0) > step:
                (self.directory / transcripts_file(number)).unlink(missing_ok=True)
                file.unlink()

    def write_step(self, step: int, records: Sequence[TaskRecord]) -> None:
        """Write the records of a step's tasks."""
        lines = "".join(record.model_dump_json() + "\n" for record in records)
        write_atomically(self.directory / step_file(step), lines)

    def write_transcripts(self, step: int, transcripts: Sequence[TranscriptRecord]) -> None:
        """Write the evidence trajectories of a step; the same transcripts give the same bytes."""
        lines = "".join(transcript.model_dump_json() + "\n" for transcript in transcripts)
        write_atomically(self.directory / transcripts_file(step), gzip.compress(lines.encode(), mtime=0))

    def write_statistics(self, step: int, statistics: Statistics, *, committed: bool) -> None:
        """Append the statistics as they are after the step; its records must be written already."""
        record = StatisticsRecord(
            step=step,
            committed=committed,
            types={name: MomentsRecord(**values) for name, values in statistics.state_dict()["types"].items()},
            records_sha256=file_sha256(self.directory / step_file(step)),
            settings_sha256=file_sha256(self.directory / SETTINGS_FILE),
        )
        with (self.directory / STATISTICS_FILE).open("a", encoding="utf-8") as file:
            file.write(record.model_dump_json() + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _has_steps(self) -> bool:
        return any(step_of(file) for file in self.directory.glob("step-*.jsonl"))


def _step_of_line(line: str) -> int:
    """0 for a line that is torn or no statistics at all."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return 0
