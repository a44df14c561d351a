"""What a run leaves on a machine is found by its folder and taken away; what others use is not."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest

from verl_ext.run_folder import FOLDER_VARIABLE, clear_run_folder, note_shared_memory, shared_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory is found by /proc")

HOLD = """
import sys, time
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=4096)
resource_tracker.unregister(memory._name, "shared_memory")  # as after a kill: nobody cleans up
print(memory.name, flush=True)
time.sleep(120)
"""


def _start(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    environment = os.environ | {FOLDER_VARIABLE: str(folder)}
    process = subprocess.Popen([sys.executable, "-c", HOLD], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path("/dev/shm") / process.stdout.readline().strip()


def test_processes_and_memory_of_a_run_are_taken_away_and_no_others(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    ours, our_memory = _start(mine)
    theirs, their_memory = _start(other)
    try:
        clear_run_folder(mine)
        assert ours.poll() is not None
        assert not our_memory.exists()
        assert theirs.poll() is None
        assert their_memory.exists()
    finally:
        theirs.kill()
        ours.kill()
        their_memory.unlink(missing_ok=True)


def test_memory_of_processes_that_are_gone_is_known_by_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    process, memory = _start(tmp_path)
    note_shared_memory([psutil.Process(process.pid)])
    process.kill()
    process.wait()
    assert memory.exists()
    clear_run_folder(tmp_path)
    assert not memory.exists()


def test_only_the_memory_of_rollout_engines_is_looked_for(tmp_path: Path) -> None:
    model = SharedMemory(name="model_of_somebody", create=True, size=4096)
    try:
        assert Path("/dev/shm/model_of_somebody") not in shared_memory([psutil.Process()])
    finally:
        model.close()
        model.unlink()


def test_a_folder_without_anything_is_fine(tmp_path: Path) -> None:
    clear_run_folder(tmp_path)
    clear_run_folder(tmp_path / "gone")
