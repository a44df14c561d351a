"""A run's files as pandas frames: one row per step (metrics), one row per task and step (audit)."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import pandas as pd
import yaml
from pydantic import ValidationError

from rsipo.audit.records import (
    SETTINGS_FILE,
    Record,
    ReplayRecord,
    RolloutRecord,
    TaskRecord,
    TranscriptRecord,
    step_of,
    transcripts_file,
)
from rsipo.problems import UserError
from rsipo.report.categories import CATEGORIES, categories_of
from rsipo.run_files import RunFiles, read_metrics
from rsipo.settings import CheckSettings

RecordT = TypeVar("RecordT", bound=Record)

STAGES = ("evidence", "parsed", "valid", "replayed", "matched", "rewarded")
"""Columns of ``RunData.tasks`` (bool): how far a task got in the execution check."""

_ROUNDING = 1e-9  # a gain that equals its type mean leaves a reward of about 1e-17


@dataclass(frozen=True, slots=True)
class RunData:
    """Everything a report says about one run.

    Attributes:
        name: unique within the report.
        metrics: indexed by ``step`` (0: before training), one column per metric, NaN where a step has no value.
        records: the audit records of all steps, in order; empty for a method without an execution check.
        tasks: one row per record, in the same order; columns as ``task_row`` gives them.
        transcripts: evidence trajectories by (step, task id); runs recorded before transcripts existed have none.
        check: the settings the estimates were made with, None without an audit.
        config: the resolved configuration; empty where the file is missing.
    """

    name: str
    root: Path
    metrics: pd.DataFrame
    records: list[TaskRecord]
    tasks: pd.DataFrame
    transcripts: dict[tuple[int, str], TranscriptRecord]
    check: CheckSettings | None
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> pd.DataFrame:
        """The metrics of training steps only."""
        return self.metrics[self.metrics.index > 0]

    def series(self, name: str, *, training: bool = True) -> pd.Series:
        """One metric over the steps that have it, as float64; empty where no step has."""
        rows = self.steps if training else self.metrics
        if name not in rows:
            return pd.Series(dtype="float64")
        return pd.to_numeric(rows[name], errors="coerce").dropna().astype("float64")


def load_runs(roots: Sequence[Path], progress: Callable[[str], None] = lambda _: None) -> list[RunData]:
    """Read several runs.

    Args:
        roots: run folders; a folder given twice is read once.
        progress: told the name of each run before it is read.

    Raises:
        UserError: a folder is no run, holds nothing yet, or holds a damaged file.
    """
    unique = list(dict.fromkeys(Path(root).resolve() for root in roots))
    runs = []
    for root, name in zip(unique, _names(unique), strict=True):
        progress(name)
        runs.append(load_run(root, name))
    return runs


def load_run(root: Path, name: str | None = None) -> RunData:
    """Read one run. Raises as ``load_runs``."""
    files = RunFiles(root)
    if not files.metrics.is_file():
        raise UserError(f"{root} is not a run: there is no {files.metrics.relative_to(root)} in it")
    rows = read_metrics(files.metrics)
    if not rows:
        raise UserError(f"{files.metrics} is empty: the run has not finished a step yet")
    metrics = pd.DataFrame.from_records(rows).set_index("step").sort_index()
    check = _check_settings(files.audit / SETTINGS_FILE)
    records: list[TaskRecord] = []
    transcripts: dict[tuple[int, str], TranscriptRecord] = {}
    for path in sorted(files.audit.glob("step-*.jsonl")):
        if (step := step_of(path)) is not None:
            records.extend(_read(path, TaskRecord))
            transcribed = files.audit / transcripts_file(step)
            if transcribed.is_file():
                transcripts |= {(step, t.task_id): t for t in _read(transcribed, TranscriptRecord)}
    tasks = pd.DataFrame.from_records([task_row(record) for record in records], columns=list(_COLUMNS)).astype(_COLUMNS)
    return RunData(name or root.name, root, metrics, records, tasks, transcripts, check, _config(files.config))


def task_row(record: TaskRecord) -> dict[str, Any]:
    """One row of ``RunData.tasks``.

    ``status`` is ``valid``, ``invalid`` (the skill), ``mismatch`` (a replay began elsewhere) or ``none`` (no skill).
    ``…_rate`` are success rates over the episodes that were not lost. ``teacher`` says whether the replays succeed
    ``more`` or ``less`` often than the control rollouts, or ``equal``; None where nothing valid was measured.
    """
    skill = record.skill
    text = (skill.text if skill is not None else None) or ""
    evidence, control = (_usable(r for r in record.rollouts if r.role == role) for role in ("evidence", "control"))
    replays = _usable(record.replays)
    valid = skill is not None and skill.valid
    status = "none" if skill is None else "invalid" if not valid else "valid"
    if record.state_matched is False:
        status = "mismatch"
    found = categories_of(text) if text else set()
    return {
        "step": record.step,
        "task_id": record.task_id,
        "task_type": record.task_type,
        "status": status,
        "skill": text,
        "rollouts": len(record.rollouts),
        "usable": len(evidence) + len(control),
        "evidence_successes": sum(evidence),
        "evidence_rate": fmean(evidence) if evidence else None,
        "control_rate": fmean(control) if control else None,
        "replay_rate": fmean(replays) if replays else None,
        "teacher": _compare(replays, control) if record.gain is not None else None,
        **{name: getattr(record, name) for name in _ESTIMATES},
        "evidence": record.evidence_index is not None,
        "parsed": bool(text),
        "valid": valid,
        "replayed": bool(replays),
        "matched": record.state_matched is True,
        "rewarded": record.gain is not None and abs(record.skill_reward or 0.0) > _ROUNDING,
        **{name: name in found for name in CATEGORIES},
    }


_ESTIMATES = ("gain", "noise_variance", "type_mean", "shrinkage_weight", "shrunk_gain", "skill_reward", "trust")

_COLUMNS = {
    "step": "int64",
    "task_id": "str",
    "task_type": "str",
    "status": "str",
    "skill": "str",
    "rollouts": "int64",
    "usable": "int64",
    "evidence_successes": "int64",
    "evidence_rate": "float64",
    "control_rate": "float64",
    "replay_rate": "float64",
    "teacher": "object",
    **dict.fromkeys(_ESTIMATES, "float64"),
    **dict.fromkeys(STAGES, "bool"),
    **dict.fromkeys(CATEGORIES, "bool"),
}


def _usable(episodes: Iterator[RolloutRecord] | Sequence[ReplayRecord]) -> list[bool]:
    """Success of each episode that was not lost."""
    return [episode.success for episode in episodes if episode.status == "ok"]


def _compare(replays: Sequence[bool], control: Sequence[bool]) -> str | None:
    if not replays or not control:
        return None
    difference = sum(replays) * len(control) - sum(control) * len(replays)  # the sign of the rates' difference, exact
    return "more" if difference > 0 else "less" if difference < 0 else "equal"


def _names(roots: Sequence[Path]) -> list[str]:
    """Folder names, with as many parents as are needed to tell them apart."""
    depth = 1
    while len({root.parts[-depth:] for root in roots}) < len(roots):
        depth += 1
    return ["/".join(root.parts[-depth:]) for root in roots]


def _check_settings(path: Path) -> CheckSettings | None:
    if not path.is_file():
        return None
    try:
        return CheckSettings.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise UserError(f"{path}: {error.errors()[0]['msg']}; `rsipo audit verify` says more") from None


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    return config if isinstance(config, dict) else {}


def _read(path: Path, model: type[RecordT]) -> Iterator[RecordT]:
    """The records of a JSON-lines file, plain or compressed. Raises UserError naming file and line."""
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line:
            continue
        try:
            yield model.model_validate_json(line)
        except ValidationError as error:
            detail = error.errors()[0]
            place = ".".join(map(str, detail["loc"]))
            raise UserError(
                f"{path}:{number} {place}: {detail['msg']}; `rsipo audit verify` lists all damage"
            ) from None
