"""``rsipo sft check``: what is good passes, every damage is named, and the published layout is understood."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rsipo.cli import app
from rsipo.record_lines import read_records, write_records
from rsipo.sft.annotate import annotate
from rsipo.sft.build import build
from rsipo.sft.check import check
from rsipo.sft.layout import SftFiles
from rsipo.sft.setup import Setup


@pytest.fixture
def made(setup: Setup, files: SftFiles) -> SftFiles:
    annotate(setup, files, None, allow_missing=False, progress=lambda *_: None)
    build(files, share=0.1, seed=0)
    return files


def rewrite(path: Path, change: Callable[[list[dict]], None]) -> None:
    """Change the rows of a Parquet file."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


def problems(folder: Path) -> str:
    return "\n".join(problem for report in check(folder) for problem in report.problems)


def test_what_was_made_is_good(made: SftFiles) -> None:
    (report,) = check(made.root)
    assert not report.problems
    assert report.hashed == 8
    assert report.counts["train.parquet"] == 10


DAMAGES = {
    "a changed row": (
        lambda files: rewrite(files.train, lambda rows: rows[0].update(source_num_steps=-1)),
        ["train.parquet is not the file", "1 rows do not say how their trajectory ended (rows 0)"],
    ),
    "a response without a skill": (
        lambda files: rewrite(files.train, lambda rows: rows[2].update(response="{}")),
        ["without a skill (no_skill) (rows 2)", "sft_records.jsonl.gz does not hold exactly the rows"],
    ),
    "a lost column": (
        lambda files: pq.write_table(pq.read_table(files.train).drop_columns(["skill_id"]), files.train),
        ["has not the columns of alfworld: missing skill_id"],
    ),
    "a column too many": (
        lambda files: pq.write_table(pq.read_table(files.train).append_column("seed", pa.array([0] * 10)), files.train),
        ["unknown seed"],
    ),
    "a number for a prompt": (
        lambda files: pq.write_table(
            pq.read_table(files.train).set_column(0, "prompt", pa.array([0] * 10)), files.train
        ),
        ["column prompt is int64 where string is wanted"],
    ),
    "a file cut off": (
        lambda files: files.train.write_bytes(files.train.read_bytes()[:500]),
        ["train.parquet cannot be read"],
    ),
    "no validation": (
        lambda files: files.validation.unlink(),
        ["val.parquet cannot be read", "val.parquet is missing"],
    ),
    "a task on both sides": (
        lambda files: rewrite(
            files.validation, lambda rows: rows[0].update(task_id=pq.read_table(files.train)["task_id"][0].as_py())
        ),
        ["1 tasks are in both files"],
    ),
    "a row twice": (
        lambda files: rewrite(files.train, lambda rows: rows.append(rows[0])),
        ["1 skill_ids are there more than once"],
    ),
    "fewer annotations": (
        lambda files: write_records(files.annotations, list(read_records(files.annotations))[1:]),
        ["11 valid annotations but 12 rows"],
    ),
    "another sample": (
        lambda files: write_records(files.tasks, list(read_records(files.tasks))[1:]),
        ["1 tasks of the rows are not sampled ones"],
    ),
    "damaged records": (
        lambda files: files.trajectories.write_bytes(files.trajectories.read_bytes()[:-9]),
        ["trajectories.jsonl.gz is cut off or damaged"],
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_is_named(name: str, made: SftFiles) -> None:
    damage, said = DAMAGES[name]
    damage(made)
    found = problems(made.root)
    for text in said:
        assert text in found


def test_the_published_layout(made: SftFiles, tmp_path: Path) -> None:
    """Configurations beside each other, one file of hashes above them, and a split that says nothing of tasks."""
    root = tmp_path / "published"
    hashes: dict[str, dict[str, str]] = {}
    for name in ("qwen25-7b-alfworld", "qwen3-1.7b-alfworld"):
        folder = Path(shutil.copytree(made.root, root / name, ignore=shutil.ignore_patterns("work", "*.json", ".lock")))
        rewrite(
            folder / "val.parquet", lambda rows: rows[0].update(task_id=pq.read_table(made.train)["task_id"][0].as_py())
        )
        parquets = sorted(folder.glob("*.parquet"))
        hashes[name] = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in parquets}
    (root / "SOURCE_SHA256.json").write_text(json.dumps(hashes))
    result = CliRunner().invoke(app, ["sft", "check", str(root)])
    assert result.exit_code == 0, result.output
    assert result.output.count("2 hashes agree") == 2
    assert result.output.count("note: 1 tasks are in both files") == 2
    flat = {f"{name}/{file}": digest for name, files in hashes.items() for file, digest in files.items()}
    elsewhere = {f"/data/{name}": {"sha256": digest, "bytes": 1} for name, digest in flat.items()}
    (root / "SOURCE_SHA256.json").write_text(json.dumps(elsewhere))
    assert [report.hashed for report in check(root)] == [2, 2]
    (root / "SOURCE_SHA256.json").write_text(json.dumps(flat | {"qwen3-1.7b-alfworld/train.parquet": "0" * 64}))
    result = CliRunner().invoke(app, ["sft", "check", str(root)])
    assert result.exit_code == 1
    assert result.output.count("PROBLEM") == 1
    assert "train.parquet is not the file whose hash SOURCE_SHA256.json records" in result.output


def test_no_data_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["sft", "check", str(tmp_path)])
    assert "holds no train.parquet" in str(result.exception)
    result = CliRunner().invoke(app, ["sft", "check", str(tmp_path / "nowhere")])
    assert "no folder" in str(result.exception)
