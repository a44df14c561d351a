"""Whole evaluations on real parts: Ray, veRL's worker, the rollout server, generated games, a model and its checkpoint."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rsipo.configuration import compose_run, save_resolved
from rsipo.evaluation.command import Options, evaluate_command
from rsipo.models import EMBEDDED_POLICY
from rsipo.problems import UserError
from rsipo.ray_cluster import ray_cluster
from rsipo.run_files import RunFiles

pytestmark = pytest.mark.ray

PROTOCOL = [
    "panel=alfworld",
    "panel.splits.valid_seen=6",
    "panel.splits.valid_unseen=6",
    "panel.seeds=[1,2]",
    "panel.max_turns=5",
]
SMALL = ["recipe=embedded", "hardware=cpu"]
Evaluate = Callable[..., list[dict]]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    work = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RSIPO_WORK", str(work))
        yield work


@pytest.fixture(scope="module")
def model(work: Path) -> Path:
    """The shipped policy with noise on its weights: it plays differently, and is no embedded policy by name."""
    folder = shutil.copytree(EMBEDDED_POLICY, work / "models" / "noisy")
    noise = torch.Generator().manual_seed(0)
    weights = load_file(folder / "model.safetensors")
    noisy = {
        name: (value + 0.02 * torch.randn(value.shape, generator=noise)).to(value.dtype)
        for name, value in weights.items()
    }
    save_file(noisy, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def evaluate(work: Path, games: Path) -> Evaluate:
    """``evaluate(name, *words, **options)`` -> the episodes, in order, without their duration."""

    def run(name: str, *words: str, **options: object) -> list[dict]:
        asked = ["alfworld", *words, *PROTOCOL, f"env.data_root={games}"]
        assert evaluate_command(asked, Options(out=work / name, **options)) == 0
        return episodes(work / name)

    return run


def episodes(folder: Path) -> list[dict]:
    lines = [json.loads(line) | {"seconds": 0} for line in (folder / "episodes.jsonl").read_text().splitlines()]
    return sorted(lines, key=lambda line: (line["split"], line["seed"], line["task_id"]))


@pytest.fixture(scope="module")
def at_once(evaluate: Evaluate, model: Path) -> list[dict]:
    """All 24 episodes at once on one worker."""
    return evaluate("at-once", str(model), *SMALL, hf=True)


def test_a_finished_evaluation_is_read_and_another_one_refused(
    evaluate: Evaluate, at_once: list[dict], model: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len({(line["split"], line["seed"], line["task_id"]) for line in at_once}) == len(at_once) == 24
    summary = (work / "at-once" / "summary.json").read_bytes()
    capsys.readouterr()
    assert evaluate("at-once", str(model), *SMALL, hf=True) == at_once
    printed = capsys.readouterr().out
    assert "valid_unseen" in printed
    assert "Started in" not in printed
    assert (work / "at-once" / "summary.json").read_bytes() == summary
    with pytest.raises(
        UserError, match=r"another evaluation: protocol.temperature was 0.4 and is now 0.7; name another"
    ):
        evaluate("at-once", str(model), *SMALL, "panel.temperature=0.7", hf=True)
    with pytest.raises(UserError, match=r"another evaluation: policy.name was 'noisy' .* \(also: policy.sha256\)"):
        evaluate("at-once", str(EMBEDDED_POLICY), *SMALL, hf=True)


def test_a_checkpoint_plays_with_its_own_weights_however_it_is_batched(
    evaluate: Evaluate, at_once: list[dict], model: Path, work: Path
) -> None:
    """A checkpoint of the noisy weights in a run that names the shipped policy as its base plays as the noisy model did.

    Two workers, each with one host of five slots, which 24 episodes do not fill evenly; three rows a forward pass.
    """
    from verl_ext.checkpoint import CheckpointStore
    from verl_ext.cluster import PolicyCluster

    config = compose_run([*SMALL, f"policy.path={model}", "run.name=rsipo-mine-alfworld", "training.kl_coefficient=0"])
    files = RunFiles(Path(config.run.directory))
    with ray_cluster(config, work / "logs"):
        cluster = PolicyCluster(config)
        cluster.start()
        CheckpointStore(files.checkpoints, None).save(3, {}, lambda folder: cluster.save(folder / "actor"))
        cluster.shutdown()
    config.policy.path = str(EMBEDDED_POLICY)
    save_resolved(config, files.config)
    layout = ["workers.rollout_workers=2", "workers.slots_per_host=5", "actor_rollout_ref.rollout.max_num_seqs=3"]
    assert evaluate("checkpoint", "mine", "3", *layout) == at_once
    first, second = (json.loads((work / name / "summary.json").read_text()) for name in ("at-once", "checkpoint"))
    assert first["splits"] == second["splits"]


def test_killed_in_the_middle_it_goes_on_to_the_same_summary(evaluate: Evaluate, games: Path, work: Path) -> None:
    words = ["alfworld", "tiny-policy", *PROTOCOL, f"env.data_root={games}", "workers.slots_per_host=1"]
    options = ["--policy", "walkthrough", "--out", str(work / "killed")]
    path = work / "killed" / "episodes.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "rsipo.cli", "evaluate", *words, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while process.poll() is None and not (path.exists() and path.read_bytes().count(b"\n") >= 3):
            time.sleep(0.05)
        process.send_signal(signal.SIGSTOP)  # it holds its folder and writes no more
        with pytest.raises(
            UserError, match=r"another process is writing .*killed; wait for it, or name another folder"
        ):
            evaluate("killed", "tiny-policy", script="walkthrough")
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    before = path.read_bytes()
    assert 3 <= before.count(b"\n") < 24
    path.write_bytes(before[:-7])  # as if the kill had come while a line was written
    resumed = evaluate("killed", "tiny-policy", script="walkthrough")
    assert path.read_bytes().startswith(before[: before[:-7].rindex(b"\n")])
    assert resumed == evaluate("whole", "tiny-policy", script="walkthrough")
    assert (work / "killed" / "summary.json").read_bytes() == (work / "whole" / "summary.json").read_bytes()
