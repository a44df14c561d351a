"""Files that are complete or absent, and what identifies them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_system.files import write_atomically

BLOCK_BYTES = 1 << 20


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; it takes the name of ``path`` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically: sorted keys, so that equal values give equal bytes."""
    write_atomically(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def sync(path: Path) -> None:
    """Bring a file's bytes, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """Hex digest of a file, read in blocks; ``progress`` is told the number of bytes of each."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            if progress:
                progress(len(block))
    return digest.hexdigest()
