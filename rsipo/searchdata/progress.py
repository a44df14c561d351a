"""Progress of long work: a bar on a terminal, and a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

HEARTBEAT_SECONDS = 30.0


class Meter:
    """Counts one piece of work; ``advance`` may be called as often as one likes."""

    def __init__(self, console: Console, bar: Progress, title: str, total: int | None, unit: str) -> None:
        self._console = console
        self._bar = bar
        self._title = title
        self._unit = unit
        self._task = bar.add_task(title, total=total, unit=unit)
        self._spoken = time.monotonic()
        self.total = total
        self.done = 0

    def advance(self, amount: int = 1) -> None:
        """``amount`` more are done."""
        self.done += amount
        self._bar.update(self._task, completed=self.done)
        if not self._console.is_terminal and time.monotonic() - self._spoken >= HEARTBEAT_SECONDS:
            self._spoken = time.monotonic()
            of = f" of {self.total:,}" if self.total else ""
            self._console.print(f"… {self._title}: {self.done:,}{of} {self._unit}", markup=False)


class StartMeter(Protocol):
    """Starts one more :class:`Meter`."""

    def __call__(self, title: str, total: int | None = None, unit: str = "rows") -> Meter: ...


@contextmanager
def meters(console: Console) -> Iterator[StartMeter]:
    """Several meters, one bar below the other, that show for as long as the block runs."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} {task.fields[unit]}"),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield lambda title, total=None, unit="rows": Meter(console, bars, title, total, unit)


@contextmanager
def meter(console: Console, title: str, total: int | None = None, unit: str = "rows") -> Iterator[Meter]:
    """One meter."""
    with meters(console) as start:
        yield start(title, total, unit)
