"""A run's words: on the terminal, and with the libraries' chatter in the run's log file."""

from __future__ import annotations

import logging
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

STACKS = "stacks-"
"""What the names of files of stacks begin with."""


class RunConsole:
    """Prints to the terminal and into ``train.log``; on a terminal it also keeps progress bars below what is printed."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        self._terminal = Console(file=sys.stdout, soft_wrap=True, highlight=False)
        self._log = Console(file=self._file, soft_wrap=True, highlight=False, no_color=True, width=120)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._terminal,
            transient=True,
            disable=not self._terminal.is_terminal,
        )
        self._bars: dict[str, TaskID] = {}

    def print(self, *objects: object, style: str | None = None, markup: bool = False) -> None:
        """As rich's ``Console.print``; markup is off unless asked for."""
        for console in (self._terminal, self._log):
            console.print(*objects, style=style, markup=markup)
        self._file.flush()

    def bar(self, name: str, completed: int, total: int) -> None:
        """Show how far something is; its bar goes when it is complete."""
        if not self._bars:
            self._progress.start()
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=total)
        self._progress.update(self._bars[name], completed=completed, total=total)
        if completed >= total:
            self._progress.remove_task(self._bars.pop(name))

    def quiet(self) -> AbstractContextManager[object]:
        """Within it, what libraries print goes to the log only; ``print`` goes on as always."""
        return redirect_stdout(self._file)

    def close(self) -> None:
        """Take the bars away and close the log."""
        self._progress.stop()
        self._file.close()


@contextmanager
def library_logs(path: Path) -> Iterator[None]:
    """Send what the libraries in this process log and warn to ``path`` instead of the terminal."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    before, root.handlers = root.handlers, [handler]
    logging.captureWarnings(True)
    warnings.simplefilter("once")
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers = before
        handler.close()


def keep_worker_logs(ray_directory: Path, target: Path) -> None:
    """Copy the log files of Ray's processes beside the run, replacing those of an earlier failure. Stacks are kept."""
    logs = ray_directory / "session_latest" / "logs"
    if logs.is_dir():
        for earlier in target.glob("*"):
            if earlier.is_dir():
                shutil.rmtree(earlier, ignore_errors=True)
            elif not earlier.name.startswith(STACKS):
                earlier.unlink(missing_ok=True)
        with suppress(OSError):  # a full disk: what failed is more important than its logs
            shutil.copytree(logs.resolve(), target, ignore_dangling_symlinks=True, dirs_exist_ok=True)
