"""What is remembered of a large file, so that another file in its place is noticed without reading all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from agent_system.files import file_sha256
from agent_system.retrieval.types import IndexProblem

#: Called with the bytes or rows done so far, and their number in all.
Progress = Callable[[int, int], None]

_PROBE_BLOCKS, _PROBE_BYTES = 64, 1 << 16


class FileFacts(BaseModel):
    """Size, hash of all bytes, and hash of 64 evenly spread blocks of 64 KiB (of small files: of everything).

    ``path`` is relative to the index folder for files inside it, else absolute.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    bytes: int
    sha256: str
    probe: str

    @classmethod
    def of(cls, path: Path, folder: Path, progress: Progress | None = None) -> FileFacts:
        """Reads all of the file."""
        size, done = path.stat().st_size, 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if progress:
                progress(done, size)

        return cls.known(path, folder, file_sha256(path, advance))

    @classmethod
    def known(cls, path: Path, folder: Path, sha256: str) -> FileFacts:
        """With a hash that was computed before."""
        inside = path.resolve().is_relative_to(folder.resolve())
        shown = path.resolve().relative_to(folder.resolve()) if inside else path.resolve()
        return cls(path=str(shown), bytes=path.stat().st_size, sha256=sha256, probe=probe(path))

    def locate(self, folder: Path) -> Path:
        """Where the file is."""
        return folder / self.path

    def check(self, folder: Path, *, every_byte: bool = False) -> Path:
        """The file's place, after comparing it with what is remembered.

        Raises:
            IndexProblem: it is missing or has changed.
        """
        path = self.locate(folder)
        if not path.is_file():
            raise IndexProblem(f"{path} is missing; restore it, or build the index again")
        size = path.stat().st_size
        if size != self.bytes:
            raise IndexProblem(f"{path} has {size} bytes, but the index was built with {self.bytes}; build it again")
        if probe(path) != self.probe or (every_byte and FileFacts.of(path, folder).sha256 != self.sha256):
            raise IndexProblem(f"{path} has changed since the index was built; restore it, or build the index again")
        return path


def probe(path: Path) -> str:
    """Hex sha256 of the size and of evenly spread blocks, the first and the last among them."""
    size = path.stat().st_size
    last = max(size - _PROBE_BYTES, 0)
    blocks = min(_PROBE_BLOCKS, -(-size // _PROBE_BYTES))
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for number in range(blocks):
            file.seek(last * number // max(blocks - 1, 1))
            digest.update(file.read(_PROBE_BYTES))
    return digest.hexdigest()
