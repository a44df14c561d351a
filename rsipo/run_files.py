"""The files of one run: where they are, and how they are written so that nothing is lost."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_system.files import write_atomically
from rsipo.problems import UserError


@dataclass(frozen=True, slots=True)
class RunFiles:
    """``<run>/rsipo`` (checkpoints, metrics, resolved configuration, log) and ``<run>/rsipo-audit``."""

    root: Path

    @property
    def main(self) -> Path:
        return self.root / "rsipo"

    @property
    def checkpoints(self) -> Path:
        return self.main / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.main / "metrics.jsonl"

    @property
    def config(self) -> Path:
        return self.main / "config.yaml"

    @property
    def log(self) -> Path:
        return self.main / "train.log"

    @property
    def worker_logs(self) -> Path:
        return self.main / "worker-logs"

    @property
    def rollouts(self) -> Path:
        return self.main / "rollouts"

    @property
    def audit(self) -> Path:
        return self.root / "rsipo-audit"

    def is_used(self) -> bool:
        """Whether a run has already written here."""
        return self.metrics.exists() or self.checkpoints.is_dir()


@contextmanager
def locked(folder: Path, otherwise: str) -> Iterator[None]:
    """Hold ``folder`` (made if need be), so that two processes never write into it.

    Args:
        otherwise: what to do instead of waiting, for the message.

    Raises:
        UserError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is writing {folder}; wait for it, or {otherwise}") from None
        yield


class MetricsLog:
    """``metrics.jsonl``: one JSON object per step, flushed to disk at once.

    On resume, lines of steps that will be trained again are dropped, so that every step appears once.
    """

    def __init__(self, path: Path, resumed_step: int | None) -> None:
        self._path = path
        kept = [] if resumed_step is None else [row for row in read_metrics(path) if row["step"] <= resumed_step]
        self.last: dict[str, Any] = kept[-1] if kept else {}
        write_atomically(path, "".join(_line(row) for row in kept))

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        """Add a step, or further metrics to the step that was written last."""
        if self.last.get("step") == step:
            self.last |= metrics
            write_atomically(self._path, "".join(_line(row) for row in [*read_metrics(self._path)[:-1], self.last]))
            return
        self.last = {"step": step, **metrics}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(self.last))
            file.flush()
            os.fsync(file.fileno())


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, allow_nan=True) + "\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every row of a metrics file, oldest first; a last line cut off by a crash is left out.

    Raises:
        UserError: a line in the middle is not JSON.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            if number < len(lines):
                raise UserError(f"{path} line {number} is not JSON; restore the file or remove that line") from None
    return rows
