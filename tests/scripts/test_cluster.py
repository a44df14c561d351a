"""The examples for several nodes.

Slurm and a cloud cannot be had here: `scontrol`, `srun` and `ray` are stand-ins that note how they were called (`srun` runs
what it is given). The driver's command is the real one, as a dry run.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "scripts" / "cluster"


@pytest.fixture
def stand_ins(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "bin"
    folder.mkdir()
    notes = tmp_path / "calls"
    tools = {
        "scontrol": "echo node-a; echo node-b",
        "srun": f'echo "srun $*" >> {notes}; while [[ $1 == --* ]]; do shift; done; exec "$@"',
        "ray": f'echo "ray $*" >> {notes}; exec sleep 60',
        "hostname": "echo 10.0.0.1",
        "python": f'if [[ $1 == - ]]; then echo "wait $2" >> {notes}; else exec {sys.executable} "$@"; fi',
    }
    for name, body in tools.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (folder / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(Path(sys.executable).parents[1]),
        "SLURM_JOB_NODELIST": "node-[a-b]",
        "SLURM_SUBMIT_DIR": str(ROOT),
        "RSIPO_WORK": str(tmp_path / "work"),
    }
    environment.pop("RSIPO_RAY_ADDRESS", None)
    return {**environment, "CALLS": str(notes)}


def test_slurm_starts_a_head_a_worker_and_one_driver(stand_ins: dict[str, str]) -> None:
    command = ["bash", str(CLUSTER / "slurm.sbatch"), "alfworld", "Qwen3-1.7B-alfworld-sft", "--dry-run"]
    done = subprocess.run(command, env=stand_ins, capture_output=True, text=True, timeout=240)
    calls = Path(stand_ins["CALLS"]).read_text().splitlines()
    assert "ray start --head --node-ip-address=10.0.0.1 --port=6379 --num-gpus=8 --disable-usage-stats --block" in calls
    assert "ray start --address=10.0.0.1:6379 --num-gpus=8 --disable-usage-stats --block" in calls
    assert "wait 2" in calls
    # The dry run of the real command: two nodes are accepted, what this machine lacks is listed.
    assert "nnodes: 2" in done.stdout, done.stderr
    assert "ray_address: 10.0.0.1:6379" in done.stdout
    assert "several nodes" not in done.stdout
    assert done.returncode == 1
    assert "nothing was started" in done.stdout


def test_slurm_gives_the_driver_its_exit_status(stand_ins: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", str(CLUSTER / "slurm.sbatch"), "alfwrld"], env=stand_ins, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 2
    assert "unknown benchmark 'alfwrld'" in done.stderr


def test_a_job_is_submitted_with_what_the_nodes_need_to_know() -> None:
    environment = {**os.environ, "RSIPO_PRINT_ONLY": "1", "RSIPO_WORK": "/data/my runs", "RSIPO_RESUME_MODE": "auto"}
    script = str(CLUSTER / "ray_job_submit.sh")
    done = subprocess.run(
        ["bash", script, "2", "alfworld", "Qwen3-1.7B", "method=grpo"], env=environment, capture_output=True, text=True
    )
    words = shlex.split(done.stdout)
    variables = json.loads(words[words.index("--runtime-env-json") + 1])["env_vars"]
    assert variables["RSIPO_RAY_ADDRESS"] == "auto"
    assert variables["RSIPO_WORK"] == "/data/my runs"
    assert words[words.index("--") + 1 :] == [
        *("rsipo", "train", "alfworld", "Qwen3-1.7B", "method=grpo"),
        *("trainer.nnodes=2", "trainer.n_gpus_per_node=8"),
    ]
    assert subprocess.run(["bash", script, "2"], capture_output=True).returncode == 2


def test_the_skypilot_task_has_its_fields_and_its_scripts_parse() -> None:
    task = yaml.safe_load((CLUSTER / "skypilot.yaml").read_text())
    assert {"resources", "num_nodes", "workdir", "setup", "run", "envs"} <= task.keys()
    for part in ("setup", "run"):
        subprocess.run(["bash", "-n"], input=task[part], text=True, check=True)
    assert "scripts/cluster/when_ready.sh" in task["run"]
