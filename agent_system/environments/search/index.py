"""The questions of a file as named, hashed tasks.

Files are Parquet or JSON lines, in any of the forms in which the Search-R1 and FlashRAG data come:

======================  ===================================================  =======================================
                        question and answers                                 source dataset
======================  ===================================================  =======================================
processed (verl-agent)  ``env_kwargs`` {question, ground_truth {target}}     ``data_source``
raw (Search-R1)         ``question``, ``golden_answers``                     ``data_source``
FlashRAG                ``question``, ``golden_answers``                     ``data_source``, else the folder's name
======================  ===================================================  =======================================
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_system.environments.base import Task

_PREFIX = "searchR1_"  # veRL's own preprocessing puts it before the dataset's name
_PARQUET_COLUMNS = (
    "id",
    "question",
    "golden_answers",
    "data_source",
    "env_kwargs",
    "extra_info.index",
    "extra_info.split",
)


def load(path: Path, split: str) -> list[Task]:
    """The tasks of a file, sorted by id.

    A task's type is its source dataset; its id ``<dataset>/<id of the row>``, where a row without an ``id`` is named by
    ``extra_info`` (``<split>_<index>``), or else by its place in the file; ``extra`` holds ``question``, ``answers`` and
    ``split``.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a row without question or answers, two rows with one id, or a file that cannot be read; names the row.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    tasks: dict[str, Task] = {}
    for number, row in enumerate(_rows(path)):
        try:
            task = _task(row, path, number, split)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, row {number}: {error}") from error
        if earlier := tasks.get(task.task_id):
            raise ValueError(f"{path}, row {number}: the id {task.task_id} is that of {earlier.location} already")
        tasks[task.task_id] = task
    if not tasks:
        raise ValueError(f"{path} holds no question")
    return [tasks[task_id] for task_id in sorted(tasks)]


def content_sha256(source: str, question: str, answers: Sequence[str]) -> str:
    """The hash of a task: of its dataset, question and golden answers."""
    content = json.dumps([source, question, list(answers)], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def _task(row: Mapping[str, Any], path: Path, number: int, split: str) -> Task:
    inner = row.get("env_kwargs") or row
    question = inner.get("question")
    if not isinstance(question, str) or not question.strip():
        raise ValueError("no question")
    answers = _answers(inner)
    source = str(row.get("data_source") or path.resolve().parent.name).removeprefix(_PREFIX)
    place = row.get("extra_info") or {}
    name = row.get("id")
    if name is None:
        name = f"{place.get('split') or split}_{place.get('index', number)}"
    question = question.strip()
    return Task(
        task_id=f"{source}/{name}",
        task_type=source,
        location=f"{path}#{number}",
        sha256=content_sha256(source, question, answers),
        extra={"question": question, "answers": answers, "split": split},
    )


def _answers(inner: Mapping[str, Any]) -> tuple[str, ...]:
    if "golden_answers" in inner:
        found = inner["golden_answers"]
    else:
        truth = inner.get("ground_truth")
        found = truth.get("target") if isinstance(truth, Mapping) else truth
    answers = [found] if isinstance(found, str) else list(found or ())
    if not all(isinstance(answer, str) for answer in answers):
        raise ValueError(f"golden answers {answers!r} are not all text")
    if not any(answer.strip() for answer in answers):
        raise ValueError("no golden answer")
    return tuple(answer for answer in answers if answer.strip())


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    if path.suffix in (".jsonl", ".json"):
        return _json_rows(path)
    raise ValueError(f"{path}: questions come as .parquet or .jsonl")


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            names = set(file.schema_arrow.names)
            # Only what is needed: prompts and tool arguments repeat every question several times.
            columns = [column for column in _PARQUET_COLUMNS if column.split(".")[0] in names]
            for batch in file.iter_batches(columns=columns):
                yield from batch.to_pylist()
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise ValueError(f"{path} is no readable Parquet file ({str(error).splitlines()[0]})") from error


def _json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, row {number}: not JSON ({error})") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}, row {number}: not a JSON object")
            yield row
