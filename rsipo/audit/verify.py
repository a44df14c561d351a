"""Recompute an audit folder from its raw outcomes and report every difference."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from agent_system.files import file_sha256
from rsipo.audit import recompute
from rsipo.audit.records import (
    SETTINGS_FILE,
    STATISTICS_FILE,
    MomentsRecord,
    Record,
    StatisticsRecord,
    TaskRecord,
    step_file,
    step_of,
)
from rsipo.audit.rules import violations
from rsipo.problems import UserError
from rsipo.run_files import read_metrics
from rsipo.settings import CheckSettings

TOLERANCE = 1e-9
"""Absolute and relative, of float comparisons."""

RecordT = TypeVar("RecordT", bound=Record)


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it should be. ``line`` counts from 1; None where the file as a whole is meant."""

    file: str
    line: int | None
    field: str
    recorded: Any
    recomputed: Any

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place} {self.field}: recorded {_show(self.recorded)}, should be {_show(self.recomputed)}"


@dataclass(slots=True)
class VerificationReport:
    """``differences`` is empty for an audit that holds."""

    directory: Path
    steps: int = 0
    tasks: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        counts = f"{self.directory}: {self.steps} steps, {self.tasks} tasks recomputed"
        if self.ok:
            return f"{counts}, no difference"
        return "\n".join([*map(str, self.differences), f"{counts}, {len(self.differences)} differences"])


def verify_run(directory: Path | str) -> VerificationReport:
    """Check a run's audit: shapes, rules, estimates, and the chain of statistics.

    Each step's statistics are recomputed from those recorded for the step before, so that one wrong line does not make
    all later ones differ; together the links prove the whole chain, which starts at zero.

    Args:
        directory: the run's folder or the ``rsipo-audit`` folder in it.

    Raises:
        UserError: there is no readable audit at all (no folder, no settings, no step).
    """
    audit = _audit_directory(Path(directory))
    settings = _settings(audit / SETTINGS_FILE)
    report = VerificationReport(audit)
    statistics: dict[int, tuple[int, StatisticsRecord]] = {}
    for line, record in _read(audit / STATISTICS_FILE, StatisticsRecord, report):
        if record.step in statistics:
            report.differences.append(Difference(STATISTICS_FILE, line, "step", record.step, "not a second time"))
        elif statistics and record.step < max(statistics):
            report.differences.append(Difference(STATISTICS_FILE, line, "step", record.step, "in rising order"))
        statistics[record.step] = (line, record)

    steps = {step for path in audit.glob("step-*.jsonl") if (step := step_of(path)) is not None}
    if not steps and not statistics:
        raise UserError(f"{audit} holds no step yet: nothing to verify")
    chain: dict[str, recompute.Moments] = {}
    previous = 0
    for step in sorted(steps | set(statistics)):
        if step > previous + 1:
            gap = f"step {step - 1}" if step == previous + 2 else f"steps {previous + 1} to {step - 1}"
            report.differences.append(Difference(STATISTICS_FILE, None, gap, None, "a line and a file for every step"))
        previous = step
        chain = _verify_step(audit, step, statistics.get(step), chain, settings, report)
    trained = max((row["step"] for row in read_metrics(audit.parent / "rsipo" / "metrics.jsonl")), default=0)
    if trained > previous:
        lost = f"step {trained}" if trained == previous + 1 else f"steps {previous + 1} to {trained}"
        report.differences.append(Difference(STATISTICS_FILE, None, lost, None, "recorded, as metrics.jsonl has it"))
    return report


def _verify_step(
    audit: Path,
    step: int,
    entry: tuple[int, StatisticsRecord] | None,
    before: dict[str, recompute.Moments],
    settings: CheckSettings,
    report: VerificationReport,
) -> dict[str, recompute.Moments]:
    """Verify one step; returns the moments the next one starts from."""
    name, problems = step_file(step), report.differences
    known = len(problems)
    lines = list(_read(audit / name, TaskRecord, report))
    readable = len(problems) == known
    report.steps += 1
    report.tasks += len(lines)

    for task_id, count in Counter(record.task_id for _, record in lines).items():
        if count > 1:
            problems.append(Difference(name, None, f"task_id {task_id}", f"{count} lines", "one line"))
    staged = recompute.moments_after(before, [record for _, record in lines], settings)
    for line, record in lines:
        if record.step != step:
            problems.append(Difference(name, line, "step", record.step, step))
        problems.extend(Difference(name, line, *violation) for violation in violations(record, settings))
        if readable:  # without all tasks of the step the type statistics are not known
            expected = recompute.estimates(record, staged.get(record.task_type, recompute.START), settings)
            for field_name, value in expected.items():
                _compare(Difference(name, line, field_name, getattr(record, field_name), value), report)

    if entry is None:
        problems.append(Difference(STATISTICS_FILE, None, f"step {step}", None, "a line for every step"))
        return staged
    line, recorded = entry
    for file, digest in ((name, recorded.records_sha256), (SETTINGS_FILE, recorded.settings_sha256)):
        if digest is not None and (audit / file).is_file() and (actual := file_sha256(audit / file)) != digest:
            problems.append(Difference(file, None, f"sha256 (of step {step})", digest, f"{actual}, as the file is now"))
    if readable:
        _compare_moments(line, recorded, staged if recorded.committed else before, report)
    return {name: recompute.exact(moments) for name, moments in recorded.types.items()}


def _compare_moments(
    line: int, recorded: StatisticsRecord, expected: dict[str, recompute.Moments], report: VerificationReport
) -> None:
    for task_type in sorted(recorded.types.keys() | expected.keys()):
        place, moments = f"types.{task_type}", recorded.types.get(task_type)
        if moments is None or task_type not in expected:
            there = "present" if moments else "missing"
            report.differences.append(
                Difference(STATISTICS_FILE, line, place, there, "missing" if moments else "present")
            )
            continue
        for name, value in zip(MomentsRecord.model_fields, expected[task_type], strict=True):
            _compare(Difference(STATISTICS_FILE, line, f"{place}.{name}", getattr(moments, name), float(value)), report)


def _compare(candidate: Difference, report: VerificationReport) -> None:
    """Keep the candidate if its two values differ."""
    one, other = candidate.recorded, candidate.recomputed
    if one is None or other is None:
        equal = one is other
    else:
        equal = math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if not equal:
        report.differences.append(candidate)


def _read(path: Path, model: type[RecordT], report: VerificationReport) -> Iterator[tuple[int, RecordT]]:
    """The records of a JSON-lines file with their line numbers; what cannot be read is reported and left out."""
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        report.differences.append(Difference(path.name, None, "file", "missing", "present"))
        return
    except UnicodeDecodeError as error:
        report.differences.append(Difference(path.name, None, "file", f"byte {error.start}", "UTF-8 text"))
        return
    except OSError as error:
        report.differences.append(Difference(path.name, None, "file", error.strerror, "a readable file"))
        return
    for number, line in enumerate(content.split("\n")[: -1 if content.endswith("\n") else None], start=1):
        try:
            yield number, model.model_validate_json(line)
        except ValidationError as error:
            for detail in error.errors():
                place = ".".join(map(str, detail["loc"])) or "line"
                given = "missing" if detail["type"] == "missing" else detail["input"]
                report.differences.append(Difference(path.name, number, place, given, detail["msg"]))


def _audit_directory(directory: Path) -> Path:
    for candidate in (directory / "rsipo-audit", directory):
        if (candidate / SETTINGS_FILE).is_file():
            return candidate
    raise UserError(f"{directory}: no audit here (neither {SETTINGS_FILE} nor rsipo-audit/{SETTINGS_FILE})")


def _settings(path: Path) -> CheckSettings:
    try:
        return CheckSettings.model_validate_json(path.read_bytes())
    except ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(map(str, detail["loc"]))
        raise UserError(f"{path}: {place + ': ' if place else ''}{detail['msg']}") from None


def _show(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 120 else f"{text[:117]}..."
