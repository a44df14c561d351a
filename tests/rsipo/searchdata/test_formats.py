from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent_system.environments.search.index import load
from rsipo.problems import UserError
from rsipo.searchdata.formats import PROCESSED_SCHEMA, QARow, read_processed, write_processed
from rsipo.searchdata.preprocess import process_split
from rsipo.searchdata.preprocess_command import preprocess

ROWS = [QARow("nq", "who?", ("a", "b"), {"id": "7"}), QARow("musique", "where?", ("c",))]


def rows_of(path: Path) -> list[dict]:
    return [{**row, "metadata": json.loads(row["metadata"])} for row in pq.read_table(path).to_pylist()]


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_published_rows_become_what_the_upstream_step_makes_of_them(search_data, tmp_path, split):
    made = tmp_path / f"{split}.parquet"
    counts = process_split(search_data / "searchr1_raw" / f"{split}.parquet", made, split, published=False)
    there = search_data / "searchr1_processed_direct" / f"{split}.parquet"
    assert pq.read_schema(made) == pq.read_schema(there).remove_metadata() == PROCESSED_SCHEMA
    assert rows_of(made) == rows_of(there)
    assert sum(counts.values()) == len(load(made, split)) == {"train": 200, "test": 1229}[split]
    assert {task.sha256 for task in load(made, split)} == {task.sha256 for task in load(there, split)}


def test_rows_survive_writing_and_the_environment_reads_them(tmp_path):
    path = tmp_path / "rows.parquet"
    assert write_processed(path, iter(ROWS), "train") == 2
    assert list(read_processed(path)) == ROWS
    tasks = load(path, "train")
    assert [(task.task_id, task.task_type, task.extra["answers"]) for task in tasks] == [
        ("musique/train_1", "musique", ("c",)),
        ("nq/train_0", "nq", ("a", "b")),
    ]


def test_a_writer_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "rows.parquet"
    write_processed(path, ROWS, "train")
    before = path.read_bytes()

    def broken():
        yield ROWS[0]
        raise UserError("bad input")

    with pytest.raises(UserError, match="bad input"):
        write_processed(path, broken(), "train")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_bad_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.parquet does not exist"):
        list(read_processed(tmp_path / "none.parquet"))
    (tmp_path / "text.parquet").write_text("question,answer")
    with pytest.raises(UserError, match=r"text\.parquet cannot be read as parquet"):
        list(read_processed(tmp_path / "text.parquet"))
    write_processed(tmp_path / "whole.parquet", ROWS, "train")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "whole.parquet").read_bytes()[:-100])
    with pytest.raises(UserError, match=r"cut\.parquet cannot be read"):
        list(read_processed(tmp_path / "cut.parquet"))
    pq.write_table(pa.table({"question": ["who?"]}), tmp_path / "other.parquet")
    with pytest.raises(UserError, match="has no column data_source, reward_model"):
        list(read_processed(tmp_path / "other.parquet"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data_source": "squad"}, "row 1: data_source 'squad' is none of nq"),
        ({"reward_model": None}, "row 1: the golden answers are no list"),
        ({"extra_info": None}, "row 1: the question is no text"),
        ({"metadata": "{"}, "row 1: metadata is not JSON"),
    ],
)
def test_bad_rows_are_named(tmp_path, change, words):
    write_processed(tmp_path / "rows.parquet", ROWS, "train")
    table = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    table[1] |= change
    pq.write_table(pa.Table.from_pylist(table, PROCESSED_SCHEMA), tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=words):
        list(read_processed(tmp_path / "rows.parquet"))


def test_verls_own_source_names_are_understood(tmp_path):
    write_processed(tmp_path / "rows.parquet", ROWS, "train")
    table = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    table[0]["data_source"] = "searchR1_nq"
    pq.write_table(pa.Table.from_pylist(table, PROCESSED_SCHEMA), tmp_path / "rows.parquet")
    assert next(read_processed(tmp_path / "rows.parquet")).source == "nq"


def test_other_rows_than_the_published_ones_leave_nothing(search_data, tmp_path, console):
    with pytest.raises(
        UserError, match=r"train file has other rows than the published 169,615 \(hotpotqa 100 for 90,447"
    ):
        preprocess(search_data / "searchr1_raw", tmp_path, allow_other_counts=False, force=False, console=console)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_preprocessing_twice_changes_nothing(search_data, tmp_path, console, capsys):
    for _ in range(2):
        preprocess(search_data / "searchr1_raw", tmp_path, allow_other_counts=True, force=False, console=console)
    assert "holds exactly these files already" in capsys.readouterr().out
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["outputs"]["test.parquet"]["rows"] == 1229
    assert manifest["results"]["rows"]["test"]["bamboogle"] == 110
    quality = json.loads((tmp_path / "quality.json").read_text())
    assert quality["test.parquet"]["all"]["csv_quotes"] == 9
    assert "bamboogle" in (tmp_path / "quality.txt").read_text()
