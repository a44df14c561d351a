"""FAISS indexes, mapped into memory where FAISS can: flat, scalar-quantised, and inverted lists."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import faiss
import numpy as np

from agent_system.retrieval.file_facts import Progress
from agent_system.retrieval.indexes.base import Ranking, best_rows
from agent_system.retrieval.types import IndexProblem

FaissKind = Literal["flat", "sq8", "ivf-sq8"]

# From so many queries on FAISS multiplies matrices instead of going through the vectors once per query. Recent
# versions ship 128,000, which makes a batch as dear as its queries one by one.
_MATRIX_PRODUCT_FROM = 20
_CHUNK_ROWS = 1 << 16
_TRAINING_ROWS_PER_LIST = 64


class FaissIndex:
    """Any FAISS index of inner products.

    Args:
        path: the file.
        nprobe: inverted lists to visit per query; without effect on other kinds.
    """

    def __init__(self, path: Path, *, nprobe: int = 64) -> None:
        faiss.cvar.distance_compute_blas_threshold = _MATRIX_PRODUCT_FROM
        try:
            self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY)
        except RuntimeError as error:
            raise IndexProblem(f"FAISS cannot read {path}: {error}") from error
        if self._index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise IndexProblem(f"{path} is a FAISS index of another metric than the inner product")
        if (lists := faiss.try_extract_index_ivf(self._index)) is not None:
            lists.nprobe = min(nprobe, lists.nlist)
        self.size, self.dimension = int(self._index.ntotal), int(self._index.d)

    def search(self, queries: np.ndarray, top_k: int) -> list[Ranking]:
        scores, rows = self._index.search(np.ascontiguousarray(queries, np.float32), min(top_k, self.size))
        return [_ranked(*pair) for pair in zip(rows, scores, strict=True)]


def _ranked(rows: np.ndarray, scores: np.ndarray) -> Ranking:
    """Without the missing (-1), and with equal scores ordered by row."""
    order = np.argsort(rows, kind="stable")
    order = order[rows[order] >= 0]
    return best_rows(scores[order], len(order), rows[order])


def build_faiss(
    kind: FaissKind, vectors: np.ndarray, path: Path, *, lists: int, progress: Progress | None = None
) -> None:
    """Writes a FAISS index of ``vectors`` (rows, dimension), read in chunks.

    Args:
        kind: ``flat`` (float32), ``sq8`` (one byte a number), ``ivf-sq8`` (the same in inverted lists).
        vectors: float32 or float16, mapped or in memory.
        path: the file.
        lists: number of inverted lists.
        progress: told the rows done.
    """
    rows, dimension = vectors.shape
    name = {"flat": "Flat", "sq8": "SQ8", "ivf-sq8": f"IVF{lists},SQ8"}[kind]
    index = faiss.index_factory(dimension, name, faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        sample = np.linspace(0, rows - 1, min(rows, lists * _TRAINING_ROWS_PER_LIST), dtype=np.int64)
        index.train(np.ascontiguousarray(vectors[sample], np.float32))
    for start in range(0, rows, _CHUNK_ROWS):
        index.add(np.ascontiguousarray(vectors[start : start + _CHUNK_ROWS], np.float32))
        if progress:
            progress(min(start + _CHUNK_ROWS, rows), rows)
    faiss.write_index(index, str(path))
