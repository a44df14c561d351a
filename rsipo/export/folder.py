"""A folder that appears whole under its name, or not at all, with a manifest of its files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_system.files import file_sha256, files_sha256, sync, write_atomically
from rsipo.problems import UserError
from rsipo.scratch import scratch_folder

MANIFEST = "MANIFEST.sha256"
_READABLE = 0o644


@contextmanager
def new_folder(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """A folder to fill; when the block ends without an error it is given a manifest, synced, and renamed to ``target``.

    Raises:
        UserError: ``target`` exists and may not be replaced.
    """
    check_target(target, overwrite=overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(f".{target.name}.partial-", target.parent) as scratch:
        folder = scratch / target.name
        folder.mkdir()
        yield folder
        for path in _files(folder):
            path.chmod(_READABLE)  # weights are written for their owner only
        write_manifest(folder)
        for path in [*_files(folder), folder]:
            sync(path)
        check_target(target, overwrite=overwrite)  # another export may have been faster
        replaced = target.with_name(f".{target.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        if target.exists():
            target.rename(replaced)
        folder.rename(target)
        sync(target.parent)
        shutil.rmtree(replaced, ignore_errors=True)


def check_target(target: Path, *, overwrite: bool) -> None:
    """Whether an export may be written to ``target``.

    Raises:
        UserError: it exists; or it is to be replaced but is no export.
    """
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise UserError(f"{target} exists: --overwrite replaces it, --out DIR writes elsewhere")
    if target.is_symlink() or not (target / MANIFEST).is_file():
        raise UserError(f"{target} is no exported model (it has no {MANIFEST}) and is not replaced; use --out DIR")


def write_manifest(folder: Path) -> None:
    """``MANIFEST.sha256`` of every file, in the form that ``sha256sum -c`` reads."""
    lines = [f"{file_sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in _files(folder)]
    write_atomically(folder / MANIFEST, "".join(lines))


def first_difference(folder: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> str | None:
    """The first file of the folder's manifest that is missing or has other contents; None: all are as they were written.

    ``progress`` is called with the bytes read and to read.
    """
    listed = [line.split("  ", 1) for line in (folder / MANIFEST).read_text(encoding="utf-8").splitlines()]
    for _, name in listed:
        if not (folder / name).is_file():
            return name
    found = files_sha256([folder / name for _, name in listed], progress)
    return next((name for (digest, name), now in zip(listed, found, strict=True) if now != digest), None)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
