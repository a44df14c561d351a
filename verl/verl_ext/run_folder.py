"""What a run leaves on a machine besides its results: processes, sockets, shared memory; and how all of it is taken away.

A run has one folder (under ``/tmp``: socket paths must be short), which whoever starts Ray makes and names in
``VERL_EXT_RUN_FOLDER``. Everything the run starts inherits the variable. The folder holds Ray's session, the sockets
that carry weights and a list of the shared memory in use, so two runs on one machine never meet, and what a killed run
left can be told from what another one uses.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import psutil

FOLDER_VARIABLE = "VERL_EXT_RUN_FOLDER"
_MEMORY_LIST = "shared_memory.json"
_MEMORY_ROOT = Path("/dev/shm")
_MEMORY_NAMES = ("psm_", "verl_weights_")  # vLLM's message rings, veRL's weight buckets
_SECONDS_TO_END = 10.0


def clear_run_folder(folder: Path) -> None:
    """End every process of the run but this one and free its shared memory; the folder itself is left to its owner.

    Call it when the run is over, or known to be dead.
    """
    processes = processes_of(folder)
    used = shared_memory(processes)
    end_processes(processes)
    try:
        listed = [Path(name) for name in json.loads((folder / _MEMORY_LIST).read_text(encoding="utf-8"))]
    except (OSError, ValueError):  # it never got that far
        listed = []
    remove_shared_memory(
        {*used, *listed, *unused_buckets()}
    )  # a bucket in transfer when the run was killed is in no list


def note_shared_memory(processes: Iterable[psutil.Process]) -> None:
    """Write down which shared memory ``processes`` use, for whoever has to clean up. No run folder: does nothing."""
    if folder := os.environ.get(FOLDER_VARIABLE):
        names = sorted(str(path) for path in shared_memory(processes))
        (Path(folder) / _MEMORY_LIST).write_text(json.dumps(names), encoding="utf-8")


def shared_memory(processes: Iterable[psutil.Process]) -> set[Path]:
    """The named shared memory of vLLM and veRL that ``processes`` have mapped. Linux only; elsewhere empty."""
    found: set[Path] = set()
    for process in processes:
        try:
            lines = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        paths = {Path(line.split(maxsplit=5)[5]) for line in lines if f" {_MEMORY_ROOT}/" in line}
        found |= {path for path in paths if path.name.startswith(_MEMORY_NAMES)}
    return found


def unused_buckets() -> set[Path]:
    """Weight buckets of this user that no process has mapped: their transfers failed or their runs were killed."""
    mine = {path for path in _MEMORY_ROOT.glob("verl_weights_*") if path.stat().st_uid == os.getuid()}
    return mine - shared_memory(psutil.process_iter()) if mine else set()


def remove_shared_memory(paths: Iterable[Path]) -> None:
    """Remove the names; a process that still has the memory mapped keeps it until it ends."""
    for path in paths:
        if path.parent == _MEMORY_ROOT and path.name.startswith(_MEMORY_NAMES):
            path.unlink(missing_ok=True)


def process_trees(parents: Iterable[psutil.Process]) -> list[psutil.Process]:
    """These processes and all their descendants, less those that have ended."""
    found: dict[int, psutil.Process] = {}
    for parent in parents:
        try:
            found |= {process.pid: process for process in (parent, *parent.children(recursive=True))}
        except psutil.NoSuchProcess:
            continue
    return list(found.values())


def end_processes(processes: list[psutil.Process], grace_s: float = 0.0) -> None:
    """Kill what is still running after ``grace_s`` seconds and wait until it is gone."""
    psutil.wait_procs(processes, timeout=grace_s)
    for process in processes:
        try:
            process.kill()
        except psutil.Error:
            continue
    psutil.wait_procs(processes, timeout=_SECONDS_TO_END)


def processes_of(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(FOLDER_VARIABLE) == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return found
