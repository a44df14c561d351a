"""Processors, accelerators, memory, disks and ports of this machine."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from rsipo.doctor.findings import Finding
from rsipo.plan import GIB
from rsipo.run_settings import EnvSection, SearchSection

_AREA = "machine"
_NVIDIA_SMI = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
_COMMAND_DEADLINE_S = 20
_CONNECT_DEADLINE_S = 2.0
_RETRIEVER_PORT = 8000
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
#: Ray's object store of a run on a CPU takes half a GiB; on GPUs Ray takes more and NCCL its share.
_SHARED_MEMORY_GIB = {"cpu": 0.6, "cuda": 8.0}
_TEMPORARY_GIB = 2.0
_LEAST_MEMORY_GIB = 4.0


def check_machine(device: str, gpus: int, gpu_memory_gib: float, work_dir: Path) -> Iterator[Finding]:
    """Findings for a device, the GPUs of a node that the profile asks for, and the folder of runs."""
    yield _processors()
    yield _accelerators(device, gpus, gpu_memory_gib)
    yield _memory()
    yield _free("shared memory", Path("/dev/shm"), _SHARED_MEMORY_GIB.get(device, _SHARED_MEMORY_GIB["cuda"]),
                "raise it (docker run --shm-size=16g): Ray's object store lies in it")  # fmt: skip
    yield _free("temporary files", Path("/tmp"), _TEMPORARY_GIB, "free space: Ray's sessions and sockets lie in it")
    yield _work_folder(work_dir)
    yield _loopback()
    yield _retriever_port()


def check_retriever(env: EnvSection, problems: Sequence[str]) -> Iterator[Finding]:
    """Whether the retriever answers, where the benchmark needs one, by what the preflight found."""
    if not isinstance(env, SearchSection):
        return
    wrong = [line for line in problems if line.startswith(("no retriever:", "env.retriever_urls:"))]
    for line in wrong:
        yield Finding(_AREA, "retriever", "fail", line.split("; ")[0],
                      "start one: bash scripts/rsipo/start_retriever.sh, or set env.retriever_urls")  # fmt: skip
    if not wrong:
        yield Finding(_AREA, "retriever", "ok", f"{', '.join(env.retriever_urls)} answers a search")


def _processors() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    text = f"{usable} of {os.cpu_count()} cores usable, {platform.machine()}, load {os.getloadavg()[0]:.1f}"
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return Finding(_AREA, "CPU", "warn", f"{text}, {platform.system()}", "the lock is for Linux on x86-64")
    if usable < 2:
        return Finding(
            _AREA, "CPU", "warn", text, "give it two cores or more: trainer, server and environments share them"
        )
    return Finding(_AREA, "CPU", "ok", text)


def _accelerators(device: str, wanted: int, memory_gib: float) -> Finding:
    found, problem = _query_gpus()
    if device == "cpu":
        return Finding(_AREA, "GPU", "ok", f"{len(found)} present, none needed by this profile")
    text = problem or "; ".join(f"{name}, {gib:.0f} GiB, driver {driver}" for name, gib, driver in found)
    if len(found) < wanted:
        return Finding(_AREA, "GPU", "fail", f"{len(found)} of {wanted} ({text})",
                       "run on a node with these GPUs, take hardware=… with fewer, or hardware=cpu")  # fmt: skip
    smallest = min(gib for _, gib, _ in found)
    if smallest < memory_gib * 0.97:  # a 96 GB card shows a little less
        return Finding(_AREA, "GPU", "fail", f"{text}; the profile plans with {memory_gib:.0f} GiB",
                       f"set hardware.device_memory_gib={int(smallest)} and look at the plan again")  # fmt: skip
    return Finding(_AREA, "GPU", "ok", text)


def _query_gpus() -> tuple[list[tuple[str, float, str]], str]:
    """(name, GiB, driver) of every GPU, or why there is none."""
    if shutil.which(_NVIDIA_SMI[0]) is None:
        return [], "no nvidia-smi"
    try:
        result = subprocess.run(_NVIDIA_SMI, capture_output=True, text=True, timeout=_COMMAND_DEADLINE_S, check=True)
        rows = [[field.strip() for field in line.split(",")] for line in result.stdout.splitlines() if line.strip()]
        return [(name, float(mib) / 1024, driver) for name, mib, driver in rows], ""
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return [], f"nvidia-smi failed: {str(error).splitlines()[0]}"


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    total, free, limit = memory.total / GIB, memory.available / GIB, _container_limit()
    text = f"{free:.1f} of {total:.1f} GiB free"
    if limit is not None and limit < total:
        return Finding(_AREA, "memory", "warn", f"{text}, but this container may use {limit:.1f} GiB",
                       "raise the container's limit: what is planned counts the machine's memory")  # fmt: skip
    if free < _LEAST_MEMORY_GIB:
        return Finding(
            _AREA, "memory", "warn", text, f"free memory: the smallest run takes about {_LEAST_MEMORY_GIB:.0f} GiB"
        )
    return Finding(_AREA, "memory", "ok", text)


def _container_limit() -> float | None:
    """GiB that the control group allows, None for no limit."""
    try:
        return int(_MEMORY_LIMIT.read_text(encoding="ascii")) / GIB
    except (OSError, ValueError):  # no control groups, or "max"
        return None


def _free(what: str, folder: Path, wanted_gib: float, remedy: str) -> Finding:
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return Finding(_AREA, what, "fail", f"{folder}: {error.strerror}", remedy)
    text = f"{folder}: {usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free"
    if usage.free < wanted_gib * GIB:
        return Finding(_AREA, what, "warn", f"{text}, {wanted_gib:.1f} wanted", remedy)
    return Finding(_AREA, what, "ok", text)


def _work_folder(folder: Path) -> Finding:
    existing = next(path for path in [folder, *folder.absolute().parents] if path.exists())
    text = f"{folder}: {shutil.disk_usage(existing).free / GIB:.1f} GiB free"
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Finding(_AREA, "disk of runs", "fail", f"{existing} cannot be written", "point RSIPO_WORK elsewhere")
    return Finding(_AREA, "disk of runs", "ok", text)


def _loopback() -> Finding:
    try:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen(1)
            socket.create_connection(server.getsockname(), _CONNECT_DEADLINE_S).close()
    except OSError as error:
        return Finding(
            _AREA, "loopback", "fail", str(error), "allow connections to 127.0.0.1: Ray's processes talk over it"
        )
    return Finding(_AREA, "loopback", "ok", "127.0.0.1 answers")


def _retriever_port() -> Finding:
    """Only the retriever of the search benchmark wants this port, so that it is taken is no problem by itself."""
    try:
        socket.create_connection(("127.0.0.1", _RETRIEVER_PORT), _CONNECT_DEADLINE_S).close()
    except OSError:
        return Finding(_AREA, f"port {_RETRIEVER_PORT}", "ok", "free")
    return Finding(_AREA, f"port {_RETRIEVER_PORT}", "ok", "in use: by a retriever, or start one elsewhere (--port)")
