"""Vectors on disk: NumPy files, and FAISS' flat index files read as the matrix they are."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from agent_system.files import write_atomically
from agent_system.retrieval.encoders import Encoder
from agent_system.retrieval.file_facts import Progress
from agent_system.retrieval.types import IndexProblem

_CHUNK_BYTES, _CHUNK_ROWS = 1 << 24, 512

# FAISS writes: fourcc, dimension (int32), rows (int64), two unused int64, trained (bool), metric (int32), floats (uint64).
_HEADER = struct.Struct("<4siqqq?iQ")
_INNER_PRODUCT = 0


def open_vectors(path: Path) -> np.ndarray:
    """The read-only mapped matrix (rows, dimension), float32 or float16. A FAISS file's is not aligned in memory.

    Raises:
        IndexProblem: neither a two-dimensional NumPy file of floats nor a FAISS flat index of inner products.
    """
    with path.open("rb") as file:
        start = file.read(_HEADER.size)
    if start.startswith(b"\x93NUMPY"):
        return _open_numpy(path)
    if len(start) == _HEADER.size and start[:4] in (b"IxFI", b"IxFl"):
        return _open_flat(path, start)
    raise IndexProblem(f"{path} is neither a NumPy file nor a FAISS flat index")


def _open_numpy(path: Path) -> np.ndarray:
    try:
        vectors = np.load(path, mmap_mode="r")
    except (ValueError, OSError) as error:
        raise IndexProblem(f"{path}: {error}") from error
    if vectors.ndim != 2 or vectors.dtype not in (np.float32, np.float16) or 0 in vectors.shape:
        raise IndexProblem(f"{path} holds {vectors.dtype} of shape {vectors.shape}, not a matrix of float32 or float16")
    return vectors


def _open_flat(path: Path, start: bytes) -> np.ndarray:
    _, dimension, rows, _, _, _, metric, floats = _HEADER.unpack(start)
    if metric != _INNER_PRODUCT:
        raise IndexProblem(f"{path} is a FAISS index of another metric than the inner product")
    expected = _HEADER.size + 4 * rows * dimension
    if rows < 1 or dimension < 1 or floats != rows * dimension or path.stat().st_size < expected:
        raise IndexProblem(
            f"{path} is cut off or damaged: {rows} vectors of {dimension} numbers need {expected} bytes, "
            f"it has {path.stat().st_size}; are all parts there?"
        )
    return np.memmap(path, np.float32, mode="r", offset=_HEADER.size, shape=(rows, dimension))


def join_parts(parts: Sequence[Path], target: Path, progress: Progress | None = None) -> None:
    """Puts the parts of a file that was split for downloading together, in the order given. A complete target is kept."""
    total = sum(part.stat().st_size for part in parts)
    if target.exists() and target.stat().st_size == total:
        return
    with target.open("wb") as out:
        for part in parts:
            with part.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    out.write(chunk)
                    if progress:
                        progress(out.tell(), total)
        out.flush()
        os.fsync(out.fileno())


def encode_corpus(
    texts_from: Callable[[int], Iterator[str]],
    rows: int,
    encoder: Encoder,
    target: Path,
    key: str,
    progress: Progress | None = None,
) -> None:
    """Encodes all passages into a float32 NumPy file; after an interruption goes on with the first chunk not written.

    Args:
        texts_from: the passages from a row on.
        rows: how many there are.
        encoder: makes the vectors.
        target: the file; it gets its name when it is complete.
        key: names corpus and encoder; work begun under another key is thrown away.
        progress: told the rows done.
    """
    if target.exists():
        return
    partial, state = target.with_suffix(".partial.npy"), target.with_suffix(".progress.json")
    done = _rows_done(state, key) if partial.exists() else 0
    shape = (rows, encoder.dimension)
    out = np.lib.format.open_memmap(partial, mode="r+" if done else "w+", dtype=np.float32, shape=shape)
    texts = texts_from(done)
    while chunk := list(islice(texts, _CHUNK_ROWS)):
        out[done : done + len(chunk)] = encoder.encode_passages(chunk)
        out.flush()
        done += len(chunk)
        write_atomically(state, json.dumps({"key": key, "rows": done}))
        if progress:
            progress(done, rows)
    partial.replace(target)
    state.unlink()


def _rows_done(state: Path, key: str) -> int:
    try:
        known = json.loads(state.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0
    return known["rows"] if known["key"] == key else 0
