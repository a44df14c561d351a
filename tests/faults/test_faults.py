"""One run, hit by one fault after another and resumed each time, ends where the undisturbed run does.

Every fault is real: processes are killed, stopped or asked to stop from outside, the disk is full. When within the phase a
fault comes is drawn from ``--fault-seed``. The table that is printed stands in docs/faults.md.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rsipo.audit.verify import verify_run
from rsipo.run_files import RunFiles, read_metrics

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.timeout(7200)]

STEPS = ("training.steps=5", "training.checkpoint_every=2")
TIMES = (
    "seconds/",
    "share/",
    "memory/",
    "workers/",
    "rollout/",
)  # and the server's rounding, which depends on its batches
RESUMES = "RSIPO_RESUME_MODE=auto resumes"
PLAYING = r"… rollouts \(.* [1-9]\d* episodes running\)"


def after(step: int) -> str:
    return rf"step {step}/"


@pytest.fixture(scope="session")
def rng(request: pytest.FixtureRequest) -> random.Random:
    seed = request.config.getoption("--fault-seed")
    print(f"fault seed {seed}")
    return random.Random(seed)


def metrics(files: RunFiles) -> dict[int, dict[str, Any]]:
    rows = read_metrics(files.metrics)
    assert len({row["step"] for row in rows}) == len(rows), "a step was logged twice"
    return {row["step"]: {name: row[name] for name in row if not name.startswith(TIMES)} for row in rows}


def checkpoint(folder: Path) -> list[Any]:
    names = ("model_world_size_1_rank_0.pt", "optim_world_size_1_rank_0.pt")
    return [torch.load(folder / "actor" / name, weights_only=False) for name in names]


def differences(expected: Any, found: Any, where: str = "") -> list[str]:
    """Where two nested structures of tensors and values differ, bit for bit."""
    if isinstance(expected, dict):
        if not isinstance(found, dict) or expected.keys() != found.keys():
            return [f"{where}: other keys"]
        return [line for key in expected for line in differences(expected[key], found[key], f"{where}/{key}")]
    if isinstance(expected, list | tuple):
        pairs = zip(expected, found, strict=True)
        return [line for index, (a, b) in enumerate(pairs) for line in differences(a, b, f"{where}/{index}")]
    if isinstance(expected, torch.Tensor):
        if hasattr(expected, "to_local"):
            expected, found = expected.to_local(), found.to_local()
        return [] if torch.equal(expected, found) else [f"{where}: tensors differ"]
    same = expected == found or (expected != expected and found != found)
    return [] if same else [f"{where}: {expected} became {found}"]


def compare(whole: RunFiles, hit: RunFiles) -> list[str]:
    """What the disturbed run has so far, against the same steps of the other one."""
    lines = []
    expected, found = metrics(whole), metrics(hit)
    for step, row in found.items():
        lines += differences(expected[step], row, f"metrics of step {step}")
    for folder in sorted(hit.checkpoints.glob("global_step_?")):
        lines += differences(checkpoint(whole.checkpoints / folder.name), checkpoint(folder), folder.name)
        states = [(files.checkpoints / folder.name / "trainer.json").read_bytes() for files in (whole, hit)]
        lines += [] if states[0] == states[1] else [f"{folder.name}: trainer.json"]
    for step in found:
        name = f"step-{step:06d}.jsonl"
        if step and (whole.audit / name).read_bytes() != (hit.audit / name).read_bytes():
            lines.append(f"audit of step {step}")
    recorded = [(files.audit / "statistics.jsonl").read_text().splitlines() for files in (whole, hit)]
    shared = min(map(len, recorded))
    lines += [] if recorded[0][:shared] == recorded[1][:shared] else ["audit statistics"]
    return lines


def fill(filler: Path, spare: int) -> None:
    """Make a file that leaves ``spare`` bytes on its file system."""
    space = os.statvfs(filler.parent)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize - spare)


@pytest.fixture(scope="session")
def table() -> Any:
    rows: list[tuple[str, ...]] = []
    yield rows
    print("\n| fault | when | how the run ended | resumed after step | lost | equal to the undisturbed run |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


@pytest.fixture(scope="session")
def whole() -> dict[str, RunFiles]:
    return {}


@pytest.fixture
def undisturbed(train: Callable, whole: dict[str, RunFiles]) -> RunFiles:
    """The run to compare with: every step has its checkpoint."""
    if "files" not in whole:
        training = train("whole", STEPS[0], "training.checkpoint_every=1")
        assert training.end() == 0, training.told()
        assert verify_run(training.files.root).ok
        whole["files"] = training.files
    return whole["files"]


def check_end(training: Any, status: int, *texts: str) -> str:
    """It ended with this status and one clear line, and nothing of it is left; returns the line."""
    assert training.end() == status, training.told()
    lines = training.errors()
    assert len(lines) == 1, lines
    for text in texts:
        assert text in lines[0], lines
    assert training.left() == []
    return lines[0]


def newest(files: RunFiles) -> int:
    return max(int(folder.name.split("_")[-1]) for folder in files.checkpoints.glob("global_step_?"))


class Hit:
    """The run that is hit: starts it, waits a random moment, and compares it with the undisturbed one."""

    def __init__(self, train: Callable, whole: RunFiles, rng: random.Random, table: list[tuple[str, ...]]) -> None:
        self.train, self.whole, self.rng, self.table = train, whole, rng, table

    def start(self, resumed: int | None, *patterns: str) -> Any:
        """Go on after step ``resumed`` and wait for the patterns and a moment."""
        training = self.train("hit", *STEPS)
        self.files = training.files
        training.wait_for("Started in" if resumed is None else f"Resumed after step {resumed}", *patterns)
        self.moment()
        return training

    def moment(self) -> None:
        self.waited = self.rng.uniform(0, 0.5)
        time.sleep(self.waited)

    def survived(self, fault: str, when: str) -> None:
        self.table.append((fault, f"{when} +{self.waited:.2f} s", "went on", "–", "0", "by the next line"))

    def equals(self, fault: str, when: str, end: str, *, saved: int, done: int) -> None:
        """``done`` steps were finished, ``saved`` is what a resume starts from; everything there is equals."""
        found = compare(self.whole, self.files)
        equal = "; ".join(found) or "yes"
        self.table.append((fault, f"{when} +{self.waited:.2f} s", end, str(saved), str(done - saved), equal))
        assert not found
        assert newest(self.files) == saved


@pytest.fixture
def hit(train: Callable, undisturbed: RunFiles, rng: random.Random, table: list[tuple[str, ...]]) -> Hit:
    return Hit(train, undisturbed, rng, table)


# The next tests are one story: each goes on with the run that the one before has left.


def test_a_dead_host_and_rollout_worker_are_replaced_and_a_dead_server_ends_the_run(hit: Hit) -> None:
    training = hit.start(None, PLAYING)
    training.kill("EnvHost")
    hit.survived("environment host killed", "step 1, rollouts")
    hit.moment()
    training.kill("RolloutWorker")
    hit.survived("rollout worker killed", "step 1, rollouts")
    training.wait_for(after(1), PLAYING)
    hit.moment()
    training.kill("CPURolloutServer")
    line = check_end(training, 2, "rollout server 0 has died", RESUMES)
    assert read_metrics(hit.files.metrics)[0]["workers/workers_replaced"] == 1
    hit.equals("rollout server killed", "step 2, rollouts", line[:60], saved=1, done=1)


def test_a_dead_training_worker_ends_the_run(hit: Hit) -> None:
    training = hit.start(1, "… update")
    training.kill("AgentActorRolloutRefWorker")
    line = check_end(training, 2, "a worker failed: AgentActorRolloutRefWorker (process ", ") has died", RESUMES)
    hit.equals("training worker killed", "step 2, update", line[:60], saved=1, done=1)


def test_a_stop_lets_an_update_be_finished(hit: Hit) -> None:
    training = hit.start(1, "… update")
    training.signal(signal.SIGTERM)
    check_end(training, 143, "stopped by SIGTERM after step 2, saved in", "global_step_2", RESUMES)
    hit.equals("SIGTERM", "step 2, update", "143 after step 2", saved=2, done=2)


def test_a_stop_ends_rollouts_and_saves_the_step_before(hit: Hit) -> None:
    training = hit.start(2, after(3), PLAYING)
    training.signal(signal.SIGTERM)
    check_end(training, 143, "stopped by SIGTERM after step 3, saved in", "global_step_3", RESUMES)
    hit.equals("SIGTERM", "step 4, rollouts", "143 after step 3", saved=3, done=3)


def test_a_full_disk_leaves_the_checkpoints_there_are(hit: Hit, disk: Path) -> None:
    training = hit.start(3, "… update")
    filler = disk / "filler"
    if disk.is_mount():
        fill(filler, spare=2 << 20)
    else:
        worker = training.parts("AgentActorRolloutRefWorker")[0]
        psutil.Process(worker.pid).rlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    line = check_end(training, 2, "global_step_4 was not written", "free disk space", RESUMES)
    filler.unlink(missing_ok=True)
    assert not list(hit.files.checkpoints.glob("*.partial"))
    hit.equals("disk full", "step 4, checkpoint", line[:60], saved=3, done=4)


def test_a_killed_driver_leaves_nothing_after_the_next_start_and_the_end_equals(hit: Hit) -> None:
    killed = hit.start(3, hit.rng.choice(["… log_probs", "… teacher", "… update", after(4)]))
    killed.signal(signal.SIGKILL)
    assert killed.end() == -signal.SIGKILL
    done = max(metrics(hit.files))
    hit.equals("driver killed", f"step {done + 1}", "without a word", saved=newest(hit.files), done=done)
    training = hit.train("hit", *STEPS)
    assert training.end() == 0, training.told()
    assert training.errors() == []
    assert killed.left() == []
    assert metrics(hit.files).keys() == metrics(hit.whole).keys()
    hit.waited = 0.0
    hit.equals("none", "to the end", "0", saved=5, done=5)
    assert verify_run(hit.files.root).ok


@pytest.mark.more_faults
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_during_a_checkpoint_lets_it_be_finished(
    train: Callable, undisturbed: RunFiles, number: signal.Signals, table: list
) -> None:
    training = train(f"checkpoint-{number.name}", *STEPS)
    training.wait_for_path(training.files.checkpoints / "global_step_2.partial")
    training.signal(number)
    check_end(training, 128 + number, "after step 2, saved in", RESUMES)
    assert compare(undisturbed, training.files) == []
    table.append((number.name, "step 2, checkpoint", f"{128 + number} after step 2", "2", "0", "yes"))


@pytest.mark.more_faults
def test_a_second_signal_ends_at_once_and_leaves_nothing_half_written(
    train: Callable, undisturbed: RunFiles, table: list
) -> None:
    training = train("twice", *STEPS)
    training.wait_for_path(training.files.checkpoints / "global_step_2")
    training.wait_for(after(2), "… update")
    training.kill("AgentActorRolloutRefWorker", signal.SIGSTOP)  # the update must not be over before the second signal
    training.signal(signal.SIGTERM)
    # Ray looks for signals once a second; two of them within one are one.
    training.wait_for("rsipo: SIGTERM: stopping as soon as", output=training.error_output)
    training.signal(signal.SIGTERM)
    check_end(training, 143, "ended at once by a second signal", RESUMES)
    assert sorted(path.name for path in training.files.checkpoints.iterdir()) == ["global_step_2"]
    assert compare(undisturbed, training.files) == []
    table.append(("SIGTERM twice", "step 3, update", "143", "2", "0", "yes"))


@pytest.mark.more_faults
def test_a_stop_while_ray_starts_is_one_line(train: Callable) -> None:
    training = train("start", *STEPS)
    training.wait_for("… start Ray")
    training.signal(signal.SIGTERM)
    time.sleep(0.2)
    training.signal(signal.SIGTERM)
    assert training.end() == 143, training.told()
    assert len(training.errors()) == 1, training.errors()
    assert training.left() == []


@pytest.mark.more_faults
def test_a_stop_in_the_last_evaluation_is_made_up_for(train: Callable, undisturbed: RunFiles, table: list) -> None:
    training = train("evaluation", *STEPS)
    training.wait_for("… evaluation")
    training.signal(signal.SIGTERM)
    check_end(training, 143, "after step 5, saved in", RESUMES)
    assert "evaluation/success" not in metrics(training.files)[5]
    training = train("evaluation", *STEPS)
    assert training.end() == 0, training.told()
    assert compare(undisturbed, training.files) == []
    table.append(("SIGTERM", "step 5, evaluation", "143 after step 5", "5", "0", "yes"))


@pytest.mark.more_faults
@pytest.mark.parametrize(("part", "phase"), [("AgentActorRolloutRefWorker", "update"), ("RolloutWorker", "rollouts")])
def test_a_hang_ends_at_the_deadline_with_all_stacks(train: Callable, part: str, phase: str, table: list) -> None:
    training = train(f"hang-{phase}", *STEPS, "workers.phase_deadline=120")
    training.wait_for("Started in", PLAYING if phase == "rollouts" else f"… {phase}")
    training.kill(part, signal.SIGSTOP)
    line = check_end(training, 2, f"phase '{phase}' did not end within 120", "stacks of all processes: stacks-")
    name = line.split("stacks of all processes: ")[1].split(";")[0]
    text = (training.files.worker_logs / name).read_text()
    assert "(the driver)" in text
    assert "File " in text
    assert "ray::RolloutWorker" in text
    assert f"ray::{part}" in text
    assert ": stopped," in text
    assert "did not answer" in text
    table.append((f"{part} hangs", f"step 1, {phase}", "2 at the deadline, stacks kept", "–", "0", "–"))
