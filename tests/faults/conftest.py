"""Real ``rsipo train`` processes to do harm to: small games, a small run, and what is needed to find its parts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from agent_system.environments.alfworld.generator import generate_games
from rsipo.run_files import RunFiles
from verl_ext.run_folder import FOLDER_VARIABLE, shared_memory

PATIENCE_S = 1800.0  # for anything that should happen; a machine may be busy


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--all-faults"):
        for item in items:
            if item.get_closest_marker("more_faults"):
                item.add_marker(pytest.mark.skip(reason="only with --all-faults"))


@dataclass
class Training:
    """One process, its output so far, and what it must not leave behind."""

    process: subprocess.Popen[bytes]
    output: Path
    files: RunFiles
    folders: set[str] = field(default_factory=set)
    memory: set[Path] = field(default_factory=set)

    def wait_for(self, *patterns: str, output: Path | None = None) -> None:
        """Until the output holds lines that match the patterns, one after another."""
        ends, output = time.monotonic() + PATIENCE_S, output or self.output
        wanted = re.compile(".*?^".join(patterns), re.DOTALL | re.MULTILINE)
        while not wanted.search(output.read_text(encoding="utf-8", errors="replace")):
            assert self.process.poll() is None, f"ended before {patterns}:\n{self.told()}"
            assert time.monotonic() < ends, f"waited for {patterns}:\n{self.told()}"
            time.sleep(0.05)

    def wait_for_path(self, path: Path) -> None:
        ends = time.monotonic() + PATIENCE_S
        while not path.exists():
            assert self.process.poll() is None, f"ended before there was {path}:\n{self.told()}"
            assert time.monotonic() < ends, f"waited for {path}:\n{self.told()}"
            time.sleep(0.005)

    def parts(self, name: str = "") -> list[psutil.Process]:
        """Its processes whose title holds ``name``; takes down what they use."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                title = (process.cmdline() or [""])[0]
                if folder := process.environ().get(FOLDER_VARIABLE):
                    self.folders.add(folder)
                self.memory |= shared_memory([process])
            except psutil.Error:
                continue
            if name in title:
                found.append(process)
        return found

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the first of its processes whose title holds ``name``."""
        ends = time.monotonic() + PATIENCE_S
        while not (parts := self.parts(name)):  # it may be about to start
            assert time.monotonic() < ends, f"no process called {name}:\n{self.told()}"
            time.sleep(0.1)
        parts[0].send_signal(number)

    def signal(self, number: signal.Signals) -> None:
        self.parts()
        self.process.send_signal(number)

    def end(self) -> int:
        """Its exit status, once it has ended by itself."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end:\n{self.told()}") from None

    @property
    def error_output(self) -> Path:
        return self.output.with_suffix(".err")

    def told(self) -> str:
        """The last lines of what it printed."""
        return "\n".join(self.output.read_text(encoding="utf-8", errors="replace").splitlines()[-25:])

    def errors(self) -> list[str]:
        """The lines that say how it ended; the notice that a stop waits is no error."""
        lines = self.error_output.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if "stopping as soon as" not in line and not line.startswith("\x1b")]

    def left(self) -> list[str]:
        """Processes, folders and shared memory of it that are still there."""
        running = [
            f"process {process.pid} {process.name()}"
            for process in psutil.process_iter()
            if _environment(process).get(FOLDER_VARIABLE) in self.folders
        ]
        return (
            running
            + [folder for folder in self.folders if Path(folder).exists()]
            + [str(path) for path in self.memory if path.exists()]
        )


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


@pytest.fixture(scope="session")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("games")
    generate_games(root, split="train", count=12, size="micro", seed=0)
    generate_games(root, split="valid_unseen", count=6, size="micro", seed=0)
    return root


@pytest.fixture(scope="session")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on a small file system of its own where this user may mount one, else an ordinary folder."""
    folder = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", folder], capture_output=True
    ).returncode
    yield folder
    if mounted == 0:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def train(games: Path, disk: Path, tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """``train(name, *overrides)`` starts ``rsipo train``; a name that has run before is resumed."""
    started: list[Training] = []

    def start(name: str, *overrides: str) -> Training:
        output = tmp_path / f"{len(started)}.out"
        arguments = [
            f"run.name={name}",
            f"env.data_root={games}",
            "env.max_turns=6",
            "training.tasks_per_step=2",
            "training.ppo_mini_batch_size=32",
            "training.keep_checkpoints=null",
            "check.num_rollouts=4",
            "check.num_replays=2",
            "evaluation.at_start=false",
            "evaluation.every=0",
            "evaluation.tasks=2",
            "evaluation.repeats=1",
            "workers.rollout_workers=1",
            "workers.slots_per_host=8",
            "logging.heartbeat=0.2",
            *overrides,
        ]
        variables = os.environ | {"RSIPO_WORK": str(disk), "RSIPO_RESUME_MODE": "auto", "OMP_NUM_THREADS": "1"}
        with output.open("wb") as out, output.with_suffix(".err").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "rsipo.cli", "train", *arguments],
                stdout=out,
                stderr=errors,
                env=variables,
                start_new_session=True,
            )
        training = Training(process, output, RunFiles(disk / "runs" / name))
        started.append(training)
        return training

    yield start
    for training in started:
        if training.process.poll() is None:
            training.process.kill()
            training.process.wait()
