"""The files of one run: where they are, and how they are written so that nothing is lost."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    def audit(self) -> Path:
        return self.root / "rsipo-audit"

    def is_used(self) -> bool:
        """Whether a run has already written here."""
        return self.metrics.exists() or self.checkpoints.is_dir()


class MetricsLog:
    """``metrics.jsonl``: one JSON object per step, flushed to disk at once.

    On resume, lines of steps that will be trained again are dropped, so that every step appears once.
    """

    def __init__(self, path: Path, resumed_step: int | None) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [] if resumed_step is None else [row for row in read_metrics(path) if row["step"] <= resumed_step]
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        temporary.replace(path)

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **metrics}, allow_nan=True) + "\n")
            file.flush()
            os.fsync(file.fileno())


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
