"""Faults of workers, servers and disks, as one line for the person at the keyboard."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_system.files import write_atomically
from rsipo.problems import UserError
from rsipo.run_console import STACKS

#: A traceback's last line as vLLM logs it: ``(Worker pid=1) ERROR 12-01 12:12:58 [file.py:1] RuntimeError: words``.
_ENGINE_ERROR = re.compile(r"ERROR [\d-]+ [\d:]+ \[[^\]]+\] ([\w.]*(?:Error|Exception)(?:: .*)?)$")


@contextmanager
def as_user_errors(folder: Path, worker_logs: Path, remedy: str) -> Iterator[None]:
    """Turn what Ray, the cluster, the rollout workers and the disk may raise into UserErrors.

    Args:
        folder: the run's; named in the message.
        worker_logs: where the logs of Ray's processes are kept.
        remedy: how to go on.
    """
    earlier = set(worker_logs.glob(f"{STACKS}*"))
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if (reason := _reason(error, folder, worker_logs)) is None:
            raise  # a programming error
        for stacks in sorted(set(worker_logs.glob(f"{STACKS}*")) - earlier)[:1]:
            reason += f", stacks of all processes: {stacks.name}"
        raise UserError(f"{reason}; {remedy})") from error


def keep_stacks(worker_logs: Path, phase: str) -> None:
    """Write where every process of the run is right now to a file beside the workers' logs. ``phase`` names it."""
    from verl_ext.run_folder import FOLDER_VARIABLE
    from verl_ext.stacks import collect

    if folder := os.environ.get(FOLDER_VARIABLE):
        path = worker_logs / f"{STACKS}{phase.replace(' ', '-')}-{time.strftime('%Y%m%d-%H%M%S')}.txt"
        write_atomically(path, collect(Path(folder)))


def _reason(error: Exception, folder: Path, worker_logs: Path) -> str | None:
    """What to say of ``error``, up to its last bracket; None for an error that no user can act on."""
    from ray.exceptions import RayError

    from agent_system.rollout.pool import PhaseDeadline, WorkerLost
    from verl_ext.checkpoint import CheckpointError
    from verl_ext.cluster import ClusterError
    from verl_ext.phases import PhaseTimeout
    from verl_ext.trainer import TrainingFault

    if isinstance(error, RayError):
        reason = _ray_reason(error)
        if "EngineDeadError" in reason:  # vLLM's words for "see above"
            reason = f"vLLM's engine has ended: {engine_fault(worker_logs) or 'its log does not say why'}"
        return f"a worker failed: {reason} (workers' logs: {worker_logs}"
    if isinstance(error, CheckpointError | ClusterError | PhaseTimeout | TrainingFault | PhaseDeadline | WorkerLost):
        return f"{error} (run folder: {folder}, workers' logs: {worker_logs}"
    if isinstance(error, OSError):
        return f"the run folder cannot be written: {error} (run folder: {folder}"
    return None


def engine_fault(worker_logs: Path) -> str | None:
    """The first error in the logs of Ray's processes that vLLM's engine wrote there before it ended, on one line."""
    for path in sorted(worker_logs.glob("worker-*.out")) + sorted(worker_logs.glob("worker-*.err")):
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if (found := _ENGINE_ERROR.search(line)) and "EngineDeadError" not in found[1]:
                    return found[1].strip()[:200]
    return None


def _ray_reason(error: Exception) -> str:
    """The dead actor's class and process, where Ray's text names them; else the text's last line."""
    from ray.exceptions import ActorDiedError

    text = str(error)
    if isinstance(error, ActorDiedError) and (found := re.search(r"class_name: (\S+)(?s:.*?)\bpid: (\d+)", text)):
        return f"{found[1]} (process {found[2]}) has died"
    lines = [line for line in text.splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1].strip()[:200]
