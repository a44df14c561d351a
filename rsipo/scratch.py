"""Scratch folders under /tmp that do not outlive their process for long, even one that was killed."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK = ".lock"


@contextmanager
def scratch_folder(
    prefix: str, parent: Path = Path("/tmp"), clear: Callable[[Path], object] = lambda folder: None
) -> Iterator[Path]:
    """A new folder with a short path for the duration of the block.

    Its owner holds a lock in it, which ends with the process; folders of the same prefix that nobody holds are removed
    first. ``clear`` is called with every folder that is about to be removed, this one and abandoned ones.
    """
    for folder in parent.glob(f"{prefix}*"):
        _remove_if_abandoned(folder, clear)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    unheld = folder / f"{_LOCK}.new"
    with unheld.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unheld.rename(folder / _LOCK)  # under its name it is never seen unheld
        try:
            yield folder
        finally:
            clear(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _remove_if_abandoned(folder: Path, clear: Callable[[Path], object]) -> None:
    try:
        with (folder / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            clear(folder)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # held, another user's, not ours, or gone by now
        return
