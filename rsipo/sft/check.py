"""Is a folder of SFT data what it should be? For folders made here, and for the published data set of six configurations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agent_system.files import file_sha256
from rsipo.problems import UserError
from rsipo.record_lines import read_json, read_records
from rsipo.settings import SkillSettings
from rsipo.sft.dataset import SCHEMAS
from rsipo.sft.layout import HASHES, SftFiles
from rsipo.skills import read_skill

_READABLE = SkillSettings(min_words=1)
_SHOWN = 3
_SUFFIXES = {".parquet", ".gz", ".json"}
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(slots=True)
class Report:
    """What was found in one folder. ``problems`` make it unfit or untrue; ``notes`` are worth knowing.

    Attributes:
        benchmark: told by the columns; None where they are neither's.
        counts: rows per file, by the file's name.
        hashed: files that agree with their recorded hash.
    """

    folder: Path
    benchmark: str | None = None
    counts: dict[str, int] = field(default_factory=dict)
    hashed: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(folder: Path) -> list[Report]:
    """Reports on ``folder``, or on every folder in it that holds a ``train.parquet``.

    Raises:
        UserError: there is no such file.
    """
    found = [one for one in (folder, *sorted(folder.glob("*/"))) if (one / "train.parquet").is_file()]
    if not found:
        raise UserError(f"{folder} holds no train.parquet, nor does any folder in it")
    return [_check_folder(one, folder) for one in found]


def _check_folder(folder: Path, root: Path) -> Report:
    report = Report(folder)
    files = SftFiles(folder)
    parts: dict[str, list[dict[str, Any]]] = {}
    for path in (files.train, _validation_file(files)):
        rows = _read_parquet(path, report)
        if rows is not None:
            parts[path.name] = rows
            report.counts[path.name] = len(rows)
            _check_rows(path.name, rows, report)
    if len(parts) == 2:
        train, validation = parts.values()
        _check_split(train, validation, files, report)
        _check_records(files, [*train, *validation], report)
    _check_hashes(folder, root, report)
    return report


def _validation_file(files: SftFiles) -> Path:
    other = files.root / "validation.parquet"
    return other if other.is_file() and not files.validation.exists() else files.validation


def _read_parquet(path: Path, report: Report) -> list[dict[str, Any]] | None:
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        report.problems.append(f"{path.name} cannot be read: {str(error).splitlines()[0]}")
        return None
    names = set(table.column_names)
    benchmark = "search" if "data_source" in names else "alfworld"
    schema = SCHEMAS[benchmark]
    missing, unknown = sorted(set(schema.names) - names), sorted(names - set(schema.names))
    if missing or unknown:
        report.problems.append(
            f"{path.name} has not the columns of {benchmark}: missing {', '.join(missing) or 'none'}; "
            f"unknown {', '.join(unknown) or 'none'}"
        )
    if report.benchmark not in (None, benchmark):
        report.problems.append(f"{path.name} is of {benchmark}, the other file of {report.benchmark}")
    report.benchmark = benchmark
    for column in schema:
        if column.name in names and not _same_kind(table.schema.field(column.name).type, column.type):
            report.problems.append(
                f"{path.name}: column {column.name} is {table.schema.field(column.name).type} where {column.type} is wanted"
            )
    return None if missing else table.to_pylist()


def _same_kind(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Widths, and whole numbers where truths or fractions are wanted, do not matter."""
    if pa.types.is_string(wanted):
        return bool(pa.types.is_string(found) or pa.types.is_large_string(found))
    number = pa.types.is_integer(found) or pa.types.is_boolean(found)
    return bool(number or (pa.types.is_floating(wanted) and pa.types.is_floating(found)))


def _check_rows(name: str, rows: Sequence[Mapping[str, Any]], report: Report) -> None:
    faults: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        for fault in _faults(row):
            faults.setdefault(fault, []).append(number)
    for fault, numbers in faults.items():
        shown = ", ".join(map(str, numbers[:_SHOWN])) + (", …" if len(numbers) > _SHOWN else "")
        report.problems.append(f"{name}: {len(numbers)} rows {fault} (rows {shown})")
    if not rows:
        report.problems.append(f"{name} has no rows")


def _faults(row: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(row["prompt"], str) or not row["prompt"].strip():
        yield "have no prompt"
    response = row["response"] if isinstance(row["response"], str) else ""
    skill = read_skill(response, finished=True, settings=_READABLE)
    if not skill.valid:
        yield f"have a response without a skill ({skill.reason})"
    elif not skill.summary:
        yield "have a response without a summary"
    if not row["parse_ok"]:
        yield "are not parse_ok"
    if not row["skill_id"] or not row["task_id"] or not row["task_type"]:
        yield "lack an id or a type"
    if row["source_success"] is None or row["source_num_steps"] is None or row["source_num_steps"] < 0:
        yield "do not say how their trajectory ended"


def _check_split(
    train: Sequence[Mapping[str, Any]], validation: Sequence[Mapping[str, Any]], files: SftFiles, report: Report
) -> None:
    repeated = [name for name, count in Counter(row["skill_id"] for row in (*train, *validation)).items() if count > 1]
    if repeated:
        report.problems.append(f"{len(repeated)} skill_ids are there more than once, such as {repeated[0]}")
    share = len(validation) / max(1, len(train) + len(validation))
    tasks = {row["task_id"] for row in train}, {row["task_id"] for row in validation}
    report.notes.append(f"{share:.1%} of the rows validate; {len(tasks[0])} and {len(tasks[1])} tasks")
    if both := tasks[0] & tasks[1]:
        promised = files.metadata.is_file() and read_json(files.metadata).get("split", {}).get("by") == "task"
        said = f"{len(both)} tasks are in both files, such as {min(both)}"
        (report.problems if promised else report.notes).append(said)


def _check_records(files: SftFiles, rows: Sequence[Mapping[str, Any]], report: Report) -> None:
    """The files the samples come from, as far as they are there, agree with them."""
    sources: dict[str, list[dict[str, Any]]] = {}
    for path in (files.tasks, files.trajectories, files.annotations, files.records):
        if not path.is_file():
            report.notes.append(f"{path.name} is not there")
            continue
        try:
            # Of the big files only what is compared.
            sources[path.name] = [_compared(record) for record in read_records(path)]
        except UserError as error:
            report.problems.append(str(error))
            continue
        report.counts[path.name] = len(sources[path.name])
    records = sources.get(files.records.name)
    if records is not None and sorted(_pair(row) for row in records) != sorted(_pair(row) for row in rows):
        report.problems.append(f"{files.records.name} does not hold exactly the rows of both Parquet files")
    annotations = sources.get(files.annotations.name)
    if annotations is not None:
        valid = [row for row in annotations if row.get("parse_ok", True) and row.get("episode_skill")]
        if len(valid) != len(rows):
            report.problems.append(f"{len(valid)} valid annotations but {len(rows)} rows")
    tasks = sources.get(files.tasks.name)
    if tasks is not None and all("task_id" in row for row in tasks):
        unknown = {row["task_id"] for row in rows} - {row["task_id"] for row in tasks}
        if unknown:
            report.problems.append(f"{len(unknown)} tasks of the rows are not sampled ones, such as {min(unknown)}")


_COMPARED = ("task_id", "skill_id", "response", "parse_ok", "episode_skill")


def _compared(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in _COMPARED if name in record}


def _pair(row: Mapping[str, Any]) -> tuple[str, str]:
    return str(row.get("skill_id")), str(row.get("response"))


def _check_hashes(folder: Path, root: Path, report: Report) -> None:
    """Every recorded hash that names a file of this folder is the file's.

    A Parquet file that is named in another way, such as by where it once lay, counts when its hash is recorded at all.
    """
    expected: dict[Path, str] = {}
    for path in dict.fromkeys((folder / HASHES, root / HASHES)):
        if path.is_file():
            try:
                expected |= dict(_recorded(read_json(path), path.parent))
            except UserError as error:
                report.problems.append(str(error))
    named = [path for path in sorted(expected) if path.parent == folder and path.suffix in _SUFFIXES]
    for path in named:
        if not path.is_file():
            report.problems.append(f"{path.name} is missing, {HASHES} lists it")
        elif file_sha256(path) != expected[path]:
            report.problems.append(f"{path.name} is not the file whose hash {HASHES} records")
        else:
            report.hashed += 1
    for path in sorted(set(folder.glob("*.parquet")) - set(named)):
        if file_sha256(path) in expected.values():
            report.hashed += 1
        else:
            report.notes.append(f"no {HASHES} records the hash of {path.name}")


def _recorded(value: Mapping[str, Any], folder: Path) -> Iterator[tuple[Path, str]]:
    """(file, sha256) of ``{path: hash}``, also nested by folder and as ``{path: {"sha256": hash}}``."""
    for name, content in value.items():
        if isinstance(content, dict):
            yield from _recorded(content, folder / name)
        elif isinstance(content, str) and _SHA256.fullmatch(content):
            yield (folder if name == "sha256" else folder / name), content
