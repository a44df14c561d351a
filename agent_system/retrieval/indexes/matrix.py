"""Exact search by blocked matrix products over vectors that stay on disk.

For batches of queries this is several times cheaper than FAISS' flat index, which goes through the vectors once per query.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from agent_system.retrieval.indexes.base import Ranking, best_rows
from agent_system.retrieval.indexes.vectors import open_vectors

_BLOCK_BYTES = 8 << 20  # of float32 vectors: stays in a core's share of the cache while the scores are computed


class MatrixIndex:
    """Inner products with float32 or float16 vectors in a NumPy file or a FAISS flat index file."""

    def __init__(self, path: Path) -> None:
        self._vectors = open_vectors(path)
        self.size, self.dimension = self._vectors.shape
        self._block = max(1, _BLOCK_BYTES // (4 * self.dimension))

    def search(self, queries: np.ndarray, top_k: int) -> list[Ranking]:
        best = [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        floor = np.full(len(queries), -np.inf, np.float32)  # score of each query's last kept row, once it has top_k
        for start in range(0, self.size, self._block):
            block = np.require(self._vectors[start : start + self._block], np.float32, ["ALIGNED"])
            scores = queries @ block.T
            for number in np.flatnonzero((scores > floor[:, None]).any(axis=1)):
                rows, values = best_rows(scores[number], top_k)
                merged = np.concatenate([best[number][0], rows + start])
                order, kept = best_rows(np.concatenate([best[number][1], values]), top_k)
                best[number] = merged[order], kept
                if len(kept) == top_k:
                    floor[number] = kept[-1]
        return best
