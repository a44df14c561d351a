"""Fine-tuning runs on real parts: Ray, veRL's engine, the shipped policy, the two scripts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from rsipo.problems import RunStopped, UserError
from rsipo.run_files import read_metrics
from rsipo.sft.training import Job, prepare, run
from rsipo.sft.training_export import ORIGIN
from rsipo.sft.training_loop import FineTuning
from rsipo.sft.training_settings import compose_training

ROOT = Path(__file__).resolve().parents[3]
SHORT = ["sft.epochs=2", "sft.batch_size=4", "sft.learning_rate=1e-3"]
STEPS_PER_EPOCH = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve samples to train on, the last batch of an epoch whole, and four to validate with."""
    folder = tmp_path_factory.mktemp("data")
    for name, numbers in (("train", range(12)), ("val", range(12, 16))):
        pq.write_table(pa.Table.from_pylist([_row(number) for number in numbers]), folder / f"{name}.parquet")
    return folder


def _row(number: int) -> dict[str, Any]:
    skill = {"episode_summary": f"Took mug {number}.", "episode_skill": f"Go to desk {number}, then take the mug."}
    return {
        "prompt": f"On the desk {number}, you see a mug {number}. Write JSON.", "response": json.dumps(skill),
        "skill_id": f"task-{number}:0", "task_id": f"task-{number}", "task_type": "pick",
        "source_success": True, "source_num_steps": 3, "parse_ok": True,
    }  # fmt: skip


def _job(data: Path, work: Path, name: str, more: Sequence[str] = ()) -> Job:
    overrides = [*SHORT, f"run.work_dir={work}", *more]
    return prepare(compose_training("alfworld", None, name, overrides), data, work / name)


@pytest.mark.ray
def test_a_run_that_is_stopped_and_resumed_gives_the_model_of_an_uninterrupted_one(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    whole = _job(data, tmp_path, "whole")
    run(whole)
    rows = read_metrics(whole.files.metrics)
    losses = [row["validation/loss"] for row in rows if "validation/loss" in row]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    AutoTokenizer.from_pretrained(whole.export)
    assert AutoModelForCausalLM.from_pretrained(whole.export).dtype == torch.bfloat16

    step = FineTuning._step

    def and_then_a_signal(self: FineTuning, number: int, batch: Any) -> dict[str, float]:
        metrics = step(self, number, batch)
        if number == STEPS_PER_EPOCH:  # the last of an epoch: validation and checkpoint are still to come
            os.kill(os.getpid(), signal.SIGTERM)
        return metrics

    with monkeypatch.context() as patch:
        patch.setattr(FineTuning, "_step", and_then_a_signal)
        with pytest.raises(RunStopped, match=rf"after step {STEPS_PER_EPOCH}, saved in .*RESUME=true"):
            run(_job(data, tmp_path, "resumed"))
    assert not (tmp_path / "resumed").exists()
    resumed = _job(data, tmp_path, "resumed", ["run.resume=auto"])
    run(resumed)
    first, second = (load_file(job.export / "model.safetensors") for job in (whole, resumed))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    for mine, theirs in zip(rows, read_metrics(resumed.files.metrics), strict=True):
        assert mine | {"tokens_per_second": 0} == theirs | {"tokens_per_second": 0}

    # All of it is there: nothing is started.
    before = resumed.files.metrics.stat().st_mtime_ns
    run(_job(data, tmp_path, "resumed", ["run.resume=auto"]))
    assert resumed.files.metrics.stat().st_mtime_ns == before

    # Neither another model in that place nor one that has lost a file is called exported.
    origin = (resumed.export / ORIGIN).read_text()
    (resumed.export / ORIGIN).write_text(origin.replace('"steps"', '"step"'))
    with pytest.raises(UserError, match=r"holds another model \(fine_tuning\.json differs\)"):
        run(_job(data, tmp_path, "resumed", ["run.resume=auto"]))
    (resumed.export / ORIGIN).write_text(origin)
    (resumed.export / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors is missing"):
        run(_job(data, tmp_path, "resumed", ["run.resume=auto"]))
    resumed.export.rename(tmp_path / "away")
    with pytest.raises(UserError, match=r"holds a run already: .* another run\.name"):
        run(_job(data, tmp_path, "resumed"))


@pytest.mark.parametrize("benchmark", ["alfworld", "search"])
def test_the_scripts_say_what_they_would_do(benchmark: str, data: Path, tmp_path: Path) -> None:
    if benchmark == "search":
        more = {"row_index": 0, "data_source": "nq", "source_final_task_score": 1.0, "analysis_prompt_version": "v1"}
        for name in ("train", "val"):
            rows = [row | more for row in pq.read_table(data / f"{name}.parquet").to_pylist()]
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
        data = tmp_path
    variables = {
        "VIRTUAL_ENV": str(Path(sys.executable).parents[1]), "DATA_DIR": str(data), "EXPORT_MODEL_DIR": str(tmp_path / "model"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "RSIPO_WORK": str(tmp_path / "work"),
    }  # fmt: skip
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "sft" / benchmark / "train_sft.sh"), "--dry-run", "sft.epochs=2"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "12 samples" in done.stdout
    assert "2 epochs of 2 steps, 8 samples each" in done.stdout
    assert "Nothing was started." in done.stdout
    assert not (tmp_path / "model").exists()
