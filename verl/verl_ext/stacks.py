"""Python stacks of all processes of a run, for the moment something hangs.

Every worker process calls ``register`` when it starts (Ray's ``worker_process_setup_hook``); from then on a signal makes it
write the stacks of its threads into the run folder, whatever it is doing. ``collect`` signals them all and reads.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
import time
from pathlib import Path

import psutil

from verl_ext.run_folder import FOLDER_VARIABLE, processes_of

_SIGNAL = signal.SIGUSR1
_SECONDS_TO_ANSWER = 3.0


def register() -> None:
    """Let this process answer ``collect``. Outside a run with a folder of its own: does nothing."""
    if folder := os.environ.get(FOLDER_VARIABLE):
        file = _answer(Path(folder), os.getpid()).open("w", encoding="utf-8")
        faulthandler.register(_SIGNAL, file=file, all_threads=True)


def collect(folder: Path) -> str:
    """The stacks of this process and of every process of the run on this machine, each with its state and CPU time."""
    processes = sorted(processes_of(folder), key=lambda process: process.pid)
    asked = []
    for process in processes:
        answer = _answer(folder, process.pid)
        if _catches(process.pid) and answer.exists():
            asked.append((answer, answer.stat().st_size))
            process.send_signal(_SIGNAL)
    ends = time.monotonic() + _SECONDS_TO_ANSWER
    while time.monotonic() < ends and any(answer.stat().st_size == before for answer, before in asked):
        time.sleep(0.1)
    time.sleep(0.2)  # a stack is written line by line
    before = dict(asked)
    parts = [f"{_describe(psutil.Process())}  (the driver)\n{_own_stacks()}"]
    for process in processes:
        answer = _answer(folder, process.pid)
        if answer not in before:
            continue
        text = answer.read_text(encoding="utf-8", errors="replace")[before[answer] :]
        parts.append(f"{_describe(process)}\n{text or 'did not answer' + chr(10)}")
    return "\n".join(parts)


def _answer(folder: Path, pid: int) -> Path:
    return folder / f"stacks-{pid}.txt"


def _catches(pid: int) -> bool:
    """Whether a process handles the signal; it would end any other."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (_SIGNAL - 1) & 1)


def _describe(process: psutil.Process) -> str:
    try:
        title = " ".join(process.cmdline())[:80]
        user, system = process.cpu_times()[:2]
        return f"=== {process.pid} {title}: {process.status()}, {user + system:.1f} s of CPU time"
    except psutil.Error:
        return f"=== {process.pid} has ended"


def _own_stacks() -> str:
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
