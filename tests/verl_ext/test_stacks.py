"""Stacks of real processes of a run: one that sleeps, one that is stopped, one that is not asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from verl_ext.run_folder import FOLDER_VARIABLE
from verl_ext.stacks import collect

_REGISTERED = """
import time
from verl_ext.stacks import register
def deep():
    print("up", flush=True)
    time.sleep(600)
register()
deep()
"""
_OTHER = "import time; print('up', flush=True); time.sleep(600)"


def test_every_process_says_where_it_is_or_why_not(tmp_path: Path) -> None:
    environment = os.environ | {FOLDER_VARIABLE: str(tmp_path)}
    programs = [_REGISTERED, _REGISTERED, _OTHER]
    processes = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE)
        for program in programs
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        processes[1].send_signal(signal.SIGSTOP)
        while psutil.Process(processes[1].pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        text = collect(tmp_path)
        again = collect(tmp_path)
        assert processes[2].poll() is None  # the signal would have ended it
    finally:
        for process in processes:
            process.kill()
            process.wait()
    driver, sleeping, stopped = text.split("\n=== ")
    assert "(the driver)" in driver
    assert "test_every_process_says_where_it_is" in driver
    assert sleeping.startswith(str(processes[0].pid))
    assert "in deep" in sleeping
    assert stopped.startswith(str(processes[1].pid))
    assert ": stopped," in stopped
    assert "did not answer" in stopped
    assert again.count("in deep") == 1


def test_without_a_run_folder_nothing_is_registered(monkeypatch) -> None:
    from verl_ext.stacks import register

    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    before = signal.getsignal(signal.SIGUSR1)
    register()
    assert signal.getsignal(signal.SIGUSR1) is before
