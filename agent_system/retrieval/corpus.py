"""A corpus in the wiki-18 form: one JSON object ``{"id", "contents", …}`` per line, read in place by its offsets."""

from __future__ import annotations

import gzip
import hashlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson

from agent_system.retrieval.file_facts import Progress
from agent_system.retrieval.types import IndexProblem

_REPORT_ROWS = 2000
_CHUNK = 1 << 24


class Corpus:
    """Rows of a JSONL file that is mapped into memory and never parsed as a whole.

    Args:
        path: the uncompressed file.
        offsets: uint64 of shape (rows + 1,): where each row begins, and the end of the file.

    Raises:
        IndexProblem: the offsets are not those of this file.
    """

    def __init__(self, path: Path, offsets: np.ndarray) -> None:
        size = path.stat().st_size
        if len(offsets) < 2 or int(offsets[0]) != 0 or int(offsets[-1]) != size:
            raise IndexProblem(f"the row offsets do not belong to {path}; build the index again")
        self.path = path
        self._offsets = offsets
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def row(self, number: int) -> bytes:
        """The JSON text of a row, verbatim, without its line end."""
        return self._bytes[int(self._offsets[number]) : int(self._offsets[number + 1])].rstrip()

    def contents(self, number: int) -> str:
        """Title and text of a row."""
        return orjson.loads(self.row(number))["contents"]

    def texts(self, start: int = 0) -> Iterator[str]:
        """The contents of all rows from ``start`` on, in order."""
        return (self.contents(number) for number in range(start, len(self)))


def scan_rows(path: Path, progress: Progress | None = None) -> tuple[np.ndarray, str]:
    """Reads and checks every row once: the offsets (uint64, rows + 1) and the file's sha256.

    Raises:
        IndexProblem: a line is not an object with an ``id`` and ``contents``; the file is empty.
    """
    size = path.stat().st_size
    offsets, digest, position = [0], hashlib.sha256(), 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if problem := _problem(line):
                raise IndexProblem(f'{path} line {number} {problem}; a row is {{"id": …, "contents": "title\\ntext"}}')
            digest.update(line)
            position += len(line)
            offsets.append(position)
            if progress and number % _REPORT_ROWS == 0:
                progress(position, size)
    if not position:
        raise IndexProblem(f"{path} is empty")
    return np.array(offsets, dtype=np.uint64), digest.hexdigest()


def _problem(line: bytes) -> str:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return "is not JSON"
    if not isinstance(row, dict) or not isinstance(row.get("id"), (str, int)):
        return "has no id"
    return "" if isinstance(row.get("contents"), str) else "has no contents"


def unpack(source: Path, target: Path, progress: Progress | None = None) -> None:
    """Unpacks a ``.jsonl.gz``; a file that is there already is complete, because it gets its name at the end.

    Raises:
        IndexProblem: the file is damaged or cut off.
    """
    if target.exists():
        return
    partial = target.with_name(target.name + ".partial")
    size = source.stat().st_size
    try:
        with source.open("rb") as packed, gzip.open(packed) as file, partial.open("wb") as out:
            while chunk := file.read(_CHUNK):
                out.write(chunk)
                if progress:
                    progress(packed.tell(), size)
            out.flush()
            os.fsync(out.fileno())
    except (EOFError, gzip.BadGzipFile, OSError) as error:
        partial.unlink(missing_ok=True)
        raise IndexProblem(f"{source} could not be unpacked to {target.parent}: {error}") from error
    partial.replace(target)
