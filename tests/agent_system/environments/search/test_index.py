"""Questions from files: one task a row, whatever form the row has, and nothing skipped in silence."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent_system.environments.search.index import content_sha256, load


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_the_forms_of_a_row(tmp_path: Path) -> None:
    truth = {"target": ["Jane Austen", "Austen"]}
    path = write(
        tmp_path / "musique" / "train.jsonl",
        {
            "id": "train_9",
            "question": " Who wrote Emma? ",
            "golden_answers": ["Jane Austen", "Austen"],
            "data_source": "nq",
        },
        {
            "data_source": "searchR1_nq",
            "extra_info": {"index": 4, "split": "train"},
            "env_kwargs": {"question": "Who wrote Emma?", "ground_truth": truth, "data_source": "nq"},
        },
        {"id": "train_1", "question": "Who wrote Emma?", "golden_answers": "Jane Austen"},
        {"question": "Who wrote Emma?", "golden_answers": ["Jane Austen", ""]},
    )
    tasks = load(path, "train")
    assert [task.task_id for task in tasks] == ["musique/train_1", "musique/train_3", "nq/train_4", "nq/train_9"]
    assert [task.task_type for task in tasks] == ["musique", "musique", "nq", "nq"]
    assert tasks[2].sha256 == tasks[3].sha256 == content_sha256("nq", "Who wrote Emma?", truth["target"])
    assert tasks[0].sha256 == tasks[1].sha256 != tasks[2].sha256
    assert tasks[3].extra == {"question": "Who wrote Emma?", "answers": ("Jane Austen", "Austen"), "split": "train"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "b", "golden_answers": ["x"]}, "row 1: no question"),
        ({"id": "b", "question": " ", "golden_answers": ["x"]}, "row 1: no question"),
        ({"id": "b", "question": "q"}, "row 1: no golden answer"),
        ({"id": "b", "question": "q", "golden_answers": ["", " "]}, "row 1: no golden answer"),
        ({"id": "b", "env_kwargs": {"question": "q", "ground_truth": ""}}, "row 1: no golden answer"),
        ({"id": "b", "question": "q", "golden_answers": [1]}, "row 1: golden answers .* not all text"),
        ({"id": "b", "question": "q", "golden_answers": 3}, "row 1: 'int' object is not iterable"),
        ({"id": "a", "question": "q", "golden_answers": ["x"]}, r"row 1: the id .*/a is that of .*\.jsonl#0 already"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "train.jsonl", {"id": "a", "question": "q", "golden_answers": ["x"]}, row)
    with pytest.raises(ValueError, match=message):
        load(path, "train")


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "a"')
    (tmp_path / "b.jsonl").write_text("[1]\n")
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "d.csv").write_text("x")
    (tmp_path / "e.jsonl").write_text("\n")
    for name, message in (
        ("a.jsonl", "row 0: not JSON"),
        ("b.jsonl", "row 0: not a JSON object"),
        ("c.parquet", "no readable Parquet file"),
        ("d.csv", r"come as \.parquet or \.jsonl"),
        ("e.jsonl", "holds no question"),
    ):
        with pytest.raises(ValueError, match=message):
            load(tmp_path / name, "train")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "f.jsonl", "train")


def test_a_parquet_file_with_few_columns_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"question": ["q"], "golden_answers": [["x"]], "data_source": ["nq"]}), path)
    assert [task.task_id for task in load(path, "train")] == ["nq/train_0"]


@pytest.mark.data
def test_both_real_forms_of_the_test_file_are_the_same_questions(search_data: Path) -> None:
    raw = load(search_data / "searchr1_raw" / "test.parquet", "test")
    processed = load(search_data / "searchr1_processed_direct" / "test.parquet", "test")
    assert {task.sha256 for task in raw} == {task.sha256 for task in processed}
    assert Counter(task.task_type for task in processed) == {
        "nq": 200, "triviaqa": 200, "popqa": 200, "hotpotqa": 185, "2wikimultihopqa": 149, "musique": 185, "bamboogle": 110,
    }  # fmt: skip


@pytest.mark.data
def test_flashrag_files_are_named_by_their_folder(search_data: Path) -> None:
    tasks = load(search_data / "flashrag" / "triviaqa" / "train.jsonl", "train")
    assert {task.task_type for task in tasks} == {"triviaqa"}
    assert len(tasks) == 100
