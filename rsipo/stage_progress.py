"""How far a command with several stages is: bars on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_EVERY_S = 30.0


class StageProgress:
    """A context; call it with (stage, done, total).

    Args:
        transient: take the bars away at the end.
    """

    def __init__(self, *, transient: bool = False) -> None:
        self._console = Console(soft_wrap=True, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=transient,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._started = self._printed = time.monotonic()

    def __enter__(self) -> StageProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Stage ``stage`` has done ``done`` of ``total``."""
        first = stage not in self._tasks
        if first:
            self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(self._tasks[stage], completed=done)
        now = time.monotonic()
        if not self._console.is_terminal and (first or done >= total or now - self._printed >= _EVERY_S):
            self._printed = now
            self._console.print(f"[{now - self._started:6.0f} s] {stage}: {done}/{total}", markup=False)
