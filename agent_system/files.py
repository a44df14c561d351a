"""Files that a reader sees either as they were or as they are meant to be, never in part."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace ``path`` by ``content`` (text as UTF-8), also across a power cut; makes the folder.

    Raises:
        OSError: it could not be written; ``path`` is as it was and nothing else is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # makes the renaming permanent
    finally:
        os.close(folder)
