"""Whole runs on vLLM's servers and real games, as a user starts them: one that is killed, and one that is terminated."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.vllm_cpu, pytest.mark.data]

ROOT = Path(__file__).parents[2]
FOLDER = "VERL_EXT_RUN_FOLDER"
SMALL = [
    "hardware=cpu_vllm",
    "training.tasks_per_step=2",
    "training.checkpoint_every=0",
    "check.num_rollouts=4",
    "check.num_replays=2",
    "env.max_turns=6",
    "prompt.max_prompt_length=1400",
    "prompt.max_teacher_prompt_length=1600",
    "skill.max_prompt_length=3000",
    "skill.max_tokens=64",
    "evaluation.at_start=false",
    "evaluation.at_end=false",
    "evaluation.every=0",
    "workers.slots_per_host=16",
]


@pytest.fixture(scope="module")
def real_games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with 60 released ALFWorld games."""
    for folder in ROOT.parents:
        archive = folder / "shared" / "data" / "alfworld" / "alfworld_text_mini.tar.xz"
        if archive.is_file():
            root = tmp_path_factory.mktemp("real")
            with tarfile.open(archive) as file:
                file.extractall(root, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
            return root
    pytest.skip("the released ALFWorld games are not beside the project (shared/data/alfworld)")


@pytest.fixture
def start(real_games: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """``start(name, *overrides)``: a run on real games, by the project's own script."""
    environment = os.environ | {"VIRTUAL_ENV": sys.prefix, "RSIPO_WORK": str(tmp_path)}
    started = []

    def run(name: str, *overrides: str) -> subprocess.Popen[bytes]:
        own = [f"run.name={name}", f"env.data_root={real_games}", *overrides]
        with (tmp_path / f"{name}.out").open("wb") as output:
            command = ["bash", "scripts/rsipo/run_rsipo.sh", *SMALL, *own]
            started.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def _first_step(process: subprocess.Popen[bytes], work: Path, name: str, limit_s: float = 1000) -> dict[str, Any]:
    """The metrics of a run's first step, as soon as there are any."""
    from rsipo.run_files import read_metrics

    log, metrics = work / f"{name}.out", work / "runs" / name / "rsipo" / "metrics.jsonl"
    end = time.monotonic() + limit_s
    while not (rows := read_metrics(metrics)):
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.5)
    return rows[0]


def _run_folder(driver: int) -> str:
    """The folder that the processes of a run have in their environment."""
    found = {child.environ().get(FOLDER) for child in psutil.Process(driver).children(recursive=True)} - {None}
    assert len(found) == 1
    return str(found.pop())


def _members(folder: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(FOLDER) == folder and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "verl_weights_"))}


@pytest.mark.timeout(2200)
def test_full_steps_in_two_precisions_and_what_a_kill_and_a_termination_leave(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """One step of RSIPO in fp32, then SIGKILL; the next run cleans up, trains in bf16 with correction, and gets SIGTERM."""
    before = _shared_memory()
    killed = start("killed")
    row = _first_step(killed, tmp_path, "killed")
    assert row["step"] == 1
    assert row["update/applied"]
    assert row["rollout/log_prob_gap_max"] < 1e-4
    assert "rollout_corr/rollout_is_mean" not in row  # off unless asked for
    dead, left = _run_folder(killed.pid), _shared_memory() - before
    assert left
    killed.kill()
    killed.wait()

    terminated = start(
        "terminated",
        "actor_rollout_ref.rollout.dtype=bfloat16",
        "algorithm.rollout_correction.rollout_is=token",
        "algorithm.rollout_correction.rollout_is_threshold=1.05",
    )
    row = _first_step(terminated, tmp_path, "terminated")
    assert _members(dead) == []
    assert not Path(dead).exists()
    assert not left & _shared_memory()
    assert row["update/applied"]
    assert 1e-4 < row["rollout/log_prob_gap_max"] < 1
    assert row["rollout_corr/kl"] != 0
    assert row["rollout_corr/rollout_is_max"] <= 1.05
    assert row["rollout_corr/rollout_is_min"] < 1 - 1e-4
    folder = _run_folder(terminated.pid)
    terminated.terminate()
    terminated.wait(timeout=180)
    assert terminated.returncode != 0
    assert _members(folder) == []
    assert not Path(folder).exists()
    assert _shared_memory() <= before
