from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_system.environments.search.index import load
from rsipo.problems import UserError
from rsipo.searchdata.sources import SourceFiles
from rsipo.searchdata.train_command import train_set_script

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").is_file())
REPOSITORY = "PeterJinGo/nq_hotpotqa_train"


def run(script: str, *arguments: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / script), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=300)


def train_set(model: str, files: SourceFiles, out: Path, **options: object) -> None:
    """The command of a script, in this process, with what it would be told on the command line."""
    if files.trex_popqa and model != "qwen2.5-7b":
        options["trex_popqa"] = files.trex_popqa
    options = {"rl_rows": "30", "sft_rows": 12, **options}
    train_set_script(model)(data_dir=files.test.parent.parent, flashrag_dir=files.flashrag, out=out, **options)


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("model", ["qwen2.5-7b", "qwen2.5-3b", "qwen3-1.7b"])
def test_a_training_set_is_the_same_bytes_again(model, files, tmp_path, capsys):
    train_set(model, files, tmp_path / "a", encoder="none")
    train_set(model, files, tmp_path / "b", encoder="none")
    said = capsys.readouterr().out
    assert f"{model}: seed 0, rl_rows 30, sft_rows 12, rl_mix equal" in said
    assert "no check by embedding" in said
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert manifest["request"]["options"]["seed"] == 0
    assert manifest["request"]["inputs"]["test"]["sha256"] == hashlib.sha256(files.test.read_bytes()).hexdigest()
    for name, rows in (("train.parquet", 30), ("sft_tasks.parquet", 12)):
        assert manifest["outputs"][name]["rows"] == rows == len(load(tmp_path / "a" / name, "train"))
        assert manifest["outputs"][name]["sha256"] == hashes(tmp_path / "a")[name]
    sources = manifest["results"]["sources"]
    assert ("popqa" in sources) == (model != "qwen2.5-7b")
    assert manifest["results"]["sft_rows_among_rl_rows"] == 0


def test_a_second_call_reuses_and_another_choice_is_refused(files, tmp_path, capsys):
    out = tmp_path / "out"
    train_set("qwen2.5-7b", files, out)
    before = hashes(out)
    times = {path: path.stat().st_mtime_ns for path in out.glob("[!.]*")}
    train_set("qwen2.5-7b", files, out)
    assert "holds exactly this set already" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in out.glob("[!.]*")} == times
    with pytest.raises(UserError, match=r"holds another data set \(seed was 0, now 1\)"):
        train_set("qwen2.5-7b", files, out, seed=1)
    assert hashes(out) == before
    train_set("qwen2.5-7b", files, out, seed=1, force=True)
    assert hashes(out)["train.parquet"] != before["train.parquet"]
    (out / "train.parquet").write_bytes(b"damaged")
    train_set("qwen2.5-7b", files, out, seed=1)
    assert len(load(out / "train.parquet", "train")) == 30


def test_no_sft_tasks_are_a_choice_too(files, tmp_path):
    train_set("qwen2.5-7b", files, tmp_path / "out", sft_rows=0, rl_rows="all")
    assert len(load(tmp_path / "out" / "train.parquet", "train")) == 150
    assert json.loads((tmp_path / "out" / "quality.json").read_text())["sft_tasks.parquet"]["all"]["rows"] == 0


def test_a_failed_rebuild_keeps_the_old_set(files, tmp_path):
    out = tmp_path / "out"
    train_set("qwen2.5-7b", files, out)
    before = hashes(out)
    with pytest.raises(UserError, match="rows left after de-duplication"):
        train_set("qwen2.5-7b", files, out, rl_rows="5000", force=True)
    assert hashes(out) == before


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("qwen2.5-3b", {"trex_popqa": None}, "give --trex-popqa FILE"),
        ("qwen2.5-7b", {"trex_popqa": Path("x")}, "leave out --trex-popqa"),
        ("qwen3-1.7b", {"encoder": "some/model"}, "needs a --similarity-threshold of its own"),
        ("qwen2.5-7b", {"similarity_threshold": 0.9}, "needs an --encoder"),
        ("qwen3-1.7b", {}, "--encoder intfloat/e5-base-v2: no such model"),
        ("qwen2.5-7b", {"rl_rows": "many"}, "write a positive number, or all"),
        ("qwen2.5-7b", {"rl_mix": "popqa=1"}, "--rl-mix 'popqa=1': write equal"),
        ("qwen2.5-7b", {"rl_rows": "5000"}, "rows left after de-duplication"),
    ],
)
def test_nonsense_is_one_line_and_writes_nothing(files, tmp_path, monkeypatch, model, options, words):
    monkeypatch.setenv("MODELS_ROOT", str(tmp_path / "models"))
    with pytest.raises(UserError) as error:
        train_set_script(model)(
            **{
                "data_dir": files.test.parent.parent,
                "flashrag_dir": files.flashrag,
                "out": tmp_path / "out",
                "trex_popqa": files.trex_popqa if model != "qwen2.5-7b" else None,
                **options,
            }
        )
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "out").glob("[!.]*"))


def test_the_readme_commands_on_the_real_slice(search_data, mirror, tmp_path):
    data = tmp_path / "search"
    for split in ("train", "test"):
        content = (search_data / "searchr1_raw" / f"{split}.parquet").read_bytes()
        mirror.files[REPOSITORY, f"{split}.parquet"] = content
    done = run(
        "examples/data_preprocess/preprocess_search_r1_dataset.py",
        *("--local_dir", data / "searchR1_processed_direct", "--allow_other_counts"),
        cwd=tmp_path,
        HF_ENDPOINT=mirror.url,
    )
    assert done.returncode == 0, done.stderr
    trex = ("--trex", search_data / "flashrag" / "trex" / "train.jsonl", "--out", data / "trex")
    done = run("scripts/data/trex_popqa.py", *trex, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "564 questions" in done.stdout
    common = ("--data-dir", data, "--flashrag-dir", search_data / "flashrag", "--sft-rows", 60, "--encoder", "none")
    popqa = ("--trex-popqa", data / "trex" / "trex_popqa_relations.jsonl")
    for model, more, sources in (
        ("qwen2.5-7b", ("--rl-rows", 200), 5),
        ("qwen2.5-3b", ("--rl-rows", 200, *popqa), 6),
        ("qwen3-1.7b", ("--rl-rows", "all", *popqa), 6),
    ):
        out = data / "train" / model
        done = run(f"scripts/data/search_train_{model}.py", *common, *more, "--out", out, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        tasks = load(out / "train.parquet", "train")
        assert len({task.task_type for task in tasks}) == sources
        assert len(load(out / "sft_tasks.parquet", "train")) == 60


def test_the_download_script_and_its_errors(mirror, tmp_path):
    script = "examples/search/searchr1_download.py"
    files = {"part_aa": b"first", "part_ab": b"second"}
    mirror.files = {("PeterJinGo/wiki-18-e5-index", name): content for name, content in files.items()}
    mirror.files["PeterJinGo/wiki-18-corpus", "wiki-18.jsonl.gz"] = b"corpus"
    done = run(script, "--local_dir", tmp_path / "wiki", "--endpoint", mirror.url, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "wiki" / "part_ab").read_bytes() == b"second"
    assert "gzip -d" in done.stdout
    mirror.files.clear()
    done = run(script, "--local_dir", tmp_path / "other", "--endpoint", mirror.url, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("searchr1_download.py: http://127.0.0.1")
    assert len(done.stderr.splitlines()) == 1
