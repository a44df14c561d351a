"""The two parquet schemas of search-based QA, and one row of them in memory.

*Raw* is the schema of the published Search-R1 set (``PeterJinGo/nq_hotpotqa_train``). *Processed* is what the search
environment and veRL read. Both carry ``metadata`` as a JSON string, since its fields differ from source to source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agent_system.files import replacing
from rsipo.problems import UserError

#: The seven datasets in the order of the test file. The last has no training split.
SOURCES = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
#: Rows of the published test file, per dataset; 51,713 in all.
PUBLISHED_TEST_ROWS = dict(zip(SOURCES, (3_610, 11_313, 14_267, 7_405, 12_576, 2_417, 125), strict=True))
#: Rows of the published training file; 169,615 in all.
PUBLISHED_TRAIN_ROWS = {"nq": 79_168, "hotpotqa": 90_447}
SYSTEM_PROMPT = "You are a helpful and harmless assistant."
ABILITY = "fact-reasoning"
BATCH_ROWS = 2048

_TARGET = pa.struct([("target", pa.list_(pa.string()))])
_PROMPT = pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))
_CASE = pa.struct([("data_source", pa.string()), ("ground_truth", _TARGET), ("question", pa.string())])
_REWARD_MODEL = pa.struct([("ground_truth", _TARGET), ("style", pa.string())])
PROCESSED_SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", _PROMPT),
        ("ability", pa.string()),
        ("reward_model", _REWARD_MODEL),
        (
            "extra_info",
            pa.struct(
                [
                    ("index", pa.int64()),
                    ("need_tools_kwargs", pa.bool_()),
                    ("question", pa.string()),
                    ("split", pa.string()),
                    ("tools_kwargs", pa.struct([("search", pa.struct([("create_kwargs", _CASE)]))])),
                ]
            ),
        ),
        ("metadata", pa.string()),
        ("env_kwargs", _CASE),
    ]
)


class BadRow(ValueError):
    """A row that does not follow its format; the reader adds the file and the row number."""


@dataclass(frozen=True, slots=True)
class QARow:
    """One question.

    Attributes:
        source: one of :data:`SOURCES`.
        question: as the policy sees it.
        answers: every golden answer.
        metadata: facts about its origin.
        subject, relation: the fact asked for, where the row was made from a single one.
    """

    source: str
    question: str
    answers: tuple[str, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    subject: str | None = None
    relation: str | None = None


def processed_row(row: QARow, split: str, index: int) -> dict[str, Any]:
    """A row in the processed schema; ``index`` counts over the file."""
    truth = {"target": list(row.answers)}
    case = {"data_source": row.source, "ground_truth": truth, "question": row.question}
    return {
        "data_source": row.source,
        "prompt": [{"content": SYSTEM_PROMPT, "role": "system"}, {"content": row.question, "role": "user"}],
        "ability": ABILITY,
        "reward_model": {"ground_truth": truth, "style": "rule"},
        "extra_info": {
            "index": index,
            "need_tools_kwargs": True,
            "question": row.question,
            "split": split,
            "tools_kwargs": {"search": {"create_kwargs": case}},
        },
        "metadata": json.dumps(row.metadata, ensure_ascii=False, sort_keys=True, default=str),
        "env_kwargs": case,
    }


def write_processed(path: Path, rows: Iterable[QARow], split: str) -> int:
    """Write rows as a processed parquet, complete or not at all, and return how many they were."""
    count = 0
    with replacing(path) as temporary, pq.ParquetWriter(temporary, PROCESSED_SCHEMA) as writer:
        batch: list[dict[str, Any]] = []
        for count, row in enumerate(rows, start=1):
            batch.append(processed_row(row, split, count - 1))
            if len(batch) == BATCH_ROWS:
                writer.write_batch(pa.RecordBatch.from_pylist(batch, PROCESSED_SCHEMA))
                batch = []
        if batch:
            writer.write_batch(pa.RecordBatch.from_pylist(batch, PROCESSED_SCHEMA))
    return count


def read_parquet(path: Path, columns: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Rows of a parquet with these columns and ``metadata``, which may be absent; read in batches.

    Raises:
        UserError: the file is missing, damaged, or has not all the columns.
    """
    wanted = list(columns)
    try:
        with pq.ParquetFile(path) as file:
            missing = [name for name in wanted if name not in file.schema_arrow.names]
            if missing:
                raise UserError(f"{path} has no column {', '.join(missing)}; is it a Search-R1 question file?")
            wanted += [name for name in ("metadata",) if name in file.schema_arrow.names]
            for batch in file.iter_batches(BATCH_ROWS, columns=wanted):
                yield from batch.to_pylist()
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; examples/data_preprocess/preprocess_search_r1_dataset.py makes it")
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{path} cannot be read as parquet ({_first_line(error)}); make or download it again"
        ) from error


def source_name(value: Any) -> str:
    """The dataset of a row; veRL's own preprocessing writes it with the prefix ``searchR1_``.

    Raises:
        BadRow: not one of the seven.
    """
    name = str(value).removeprefix("searchR1_")
    if name not in SOURCES:
        raise BadRow(f"data_source {value!r} is none of {', '.join(SOURCES)}")
    return name


def answers_of(value: Any) -> tuple[str, ...]:
    """Golden answers from ``[…]`` or ``{"target": […]}``.

    Raises:
        BadRow: anything else.
    """
    found = value.get("target") if isinstance(value, Mapping) else value
    if isinstance(found, str):
        found = [found]
    if not isinstance(found, list) or not all(isinstance(answer, str) for answer in found):
        raise BadRow(f"the golden answers are no list of strings: {str(value)[:80]}")
    for answer in found:
        _check_unicode(answer)
    return tuple(found)


def question_of(value: Any) -> str:
    """A question; an empty one is no question.

    Raises:
        BadRow: no text.
    """
    if not isinstance(value, str) or not value.strip():
        raise BadRow(f"the question is no text: {value!r}")
    _check_unicode(value)
    return value


def metadata_of(value: Any) -> dict[str, Any]:
    """Metadata from a struct, a JSON string or nothing."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise BadRow(f"metadata is not JSON ({error})") from error
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, Mapping) else {}


def read_raw(path: Path) -> Iterator[QARow]:
    """Rows of a raw parquet, their questions as they stand there.

    Raises:
        UserError: the file or one of its rows is not as it should be.
    """
    for number, row in enumerate(read_parquet(path, ("question", "data_source", "reward_model"))):
        try:
            answers = answers_of((row["reward_model"] or {}).get("ground_truth"))
            question = question_of(row["question"])
            yield QARow(source_name(row["data_source"]), question, answers, metadata_of(row.get("metadata")))
        except BadRow as error:
            raise UserError(f"{path} row {number}: {error}") from error


def read_processed(path: Path) -> Iterator[QARow]:
    """Rows of a processed parquet.

    Raises:
        UserError: the file or one of its rows is not as it should be.
    """
    for number, row in enumerate(read_parquet(path, ("data_source", "reward_model", "extra_info"))):
        try:
            truth = (row["reward_model"] or {}).get("ground_truth")
            question = question_of((row["extra_info"] or {}).get("question"))
            metadata = metadata_of(row.get("metadata"))
            yield QARow(
                source_name(row["data_source"]),
                question,
                answers_of(truth),
                metadata,
                metadata.get("subject"),
                metadata.get("relation"),
            )
        except BadRow as error:
            raise UserError(f"{path} row {number}: {error}") from error


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half a surrogate pair, which JSON lets pass and no file format takes
        raise BadRow(f"not valid Unicode: {text[:80]!a}") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200]
