"""Files that a reader sees either as they were or as they are meant to be, never in part; and what identifies them."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

BLOCK_BYTES = 1 << 20


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; it takes the name of ``path`` when the block ends without an error.

    Makes the folder. After an error, an OSError among them, ``path`` is as it was and nothing else is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)  # makes the renaming permanent


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace ``path`` by ``content`` (text as UTF-8), also across a power cut; makes the folder.

    Raises:
        OSError: it could not be written; ``path`` is as it was and nothing else is left.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


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


def files_sha256(paths: Sequence[Path], progress: Callable[[int, int], None]) -> Iterator[str]:
    """The hash of each file, one after the other; ``progress`` is called with the bytes read and to read of all of them."""
    total, done = sum(path.stat().st_size for path in paths), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    for path in paths:
        yield file_sha256(path, advance)
