from __future__ import annotations

import signal
import subprocess
import sys
import time

from rsipo.scratch import scratch_folder

HOLD = """
import sys, time
from pathlib import Path
from rsipo.scratch import scratch_folder
with scratch_folder("job-", Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


def test_it_is_gone_after_the_block(tmp_path):
    with scratch_folder("job-", tmp_path) as folder:
        (folder / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_holds_is_not(tmp_path):
    owner = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        held = owner.stdout.readline().strip()
        with scratch_folder("job-", tmp_path) as mine:
            assert sorted(map(str, tmp_path.iterdir())) == sorted([held, str(mine)])
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        time.sleep(0.1)
        with scratch_folder("job-", tmp_path) as mine:
            assert list(tmp_path.iterdir()) == [mine]
    finally:
        owner.kill()


def test_folders_without_a_lock_are_left_alone(tmp_path):
    (tmp_path / "job-other").mkdir()
    with scratch_folder("job-", tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["job-other"]
