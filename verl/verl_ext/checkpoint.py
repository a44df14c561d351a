"""Checkpoints that are complete or absent.

A checkpoint is written into ``global_step_N.partial``, verified, given a manifest as its completeness marker and only then
renamed to ``global_step_N``. Older ones are removed after the new one has its name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verl_ext.errors import last_line

MARKER = "complete.json"
STATE = "trainer.json"
_NAME = re.compile(r"global_step_(\d+)")


class CheckpointError(Exception):
    """A checkpoint could not be written or read. The message names the folder and the remedy."""


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        directory: holds ``global_step_N`` folders.
        keep: how many complete ones to keep, newest first; None keeps all.
    """

    def __init__(self, directory: Path, keep: int | None) -> None:
        self.directory = directory
        self._keep = keep

    def save(self, step: int, state: dict[str, Any], write: Callable[[Path], None]) -> Path:
        """Write checkpoint ``step``: ``write`` fills a folder with the model's files, ``state`` is the trainer's, JSON-able.

        Raises:
            CheckpointError: disk full or files missing after writing; what was there before is untouched.
        """
        final = self.directory / f"global_step_{step}"
        partial = final.with_suffix(".partial")
        for leftover in self.directory.glob("global_step_*.partial"):  # of a killed run
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            write(partial)
            _write_json(partial / STATE, state)
            sizes = {str(path.relative_to(partial)): path.stat().st_size for path in _files(partial)}
            _verify(partial, final)
            _write_json(partial / MARKER, {"step": step, "files": sizes})
            _sync_files(partial)
        except BaseException as error:  # also an interruption: nothing half-written stays
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, CheckpointError) or not isinstance(error, Exception):
                raise
            raise CheckpointError(
                f"checkpoint {final} was not written ({last_line(error)}); free disk space if it is full, and resume"
            ) from error
        replaced = final.with_suffix(".replaced")
        if final.exists():
            final.rename(replaced)
        partial.rename(final)
        _sync(self.directory)
        shutil.rmtree(replaced, ignore_errors=True)
        self._prune()
        return final

    def latest(self) -> tuple[int, Path] | None:
        """The newest complete checkpoint, or None. Incomplete folders are never taken."""
        complete = self.complete()
        return complete[-1] if complete else None

    def read_state(self, path: Path) -> dict[str, Any]:
        """The trainer's state of a complete checkpoint."""
        try:
            state = json.loads((path / STATE).read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError) as error:
            raise CheckpointError(
                f"checkpoint {path}: cannot read {STATE} ({error}); remove the folder to use an older one"
            )
        if not isinstance(state, dict):
            raise CheckpointError(f"checkpoint {path}: {STATE} is not an object; remove the folder to use an older one")
        return state

    def complete(self) -> list[tuple[int, Path]]:
        """Every complete checkpoint, (step, folder), oldest first."""
        found = []
        for path in self.directory.glob("global_step_*") if self.directory.is_dir() else ():
            match = _NAME.fullmatch(path.name)
            if match and _is_complete(path):
                found.append((int(match.group(1)), path))
        return sorted(found)

    def _prune(self) -> None:
        if self._keep is None:
            return
        for _, path in self.complete()[: -self._keep]:
            shutil.rmtree(path)


def _is_complete(path: Path) -> bool:
    try:
        files = json.loads((path / MARKER).read_text(encoding="utf-8"))["files"]
        return all((path / name).stat().st_size == size for name, size in files.items())
    except (OSError, json.JSONDecodeError, KeyError, TypeError):
        return False


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True), encoding="utf-8")


def _verify(directory: Path, final: Path) -> None:
    """Every tensor file must be there and whole: torch's files are zip archives whose directory stands at the end."""
    tensors = [path for path in _files(directory) if path.suffix == ".pt"]
    broken = [path.name for path in tensors if not zipfile.is_zipfile(path)]
    if not tensors or broken:
        raise CheckpointError(f"checkpoint {final} was not written whole: {', '.join(broken) or 'no tensor file'}")


def _sync_files(directory: Path) -> None:
    for path in [*_files(directory), directory]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
