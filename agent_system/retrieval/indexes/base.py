"""The two kinds of index, and how the best rows are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

#: Row numbers (int64) and scores (float32) of one query, best first; at most ``top_k`` of them.
Ranking = tuple[np.ndarray, np.ndarray]


class TextIndex(Protocol):
    """Searches by the words of a query."""

    size: int

    def search(self, queries: Sequence[str], top_k: int) -> list[Ranking]: ...


class VectorIndex(Protocol):
    """Searches by inner product with an encoder's vectors."""

    size: int
    dimension: int

    def search(self, queries: np.ndarray, top_k: int) -> list[Ranking]:
        """``queries``: float32 of shape (queries, dimension)."""


def best_rows(scores: np.ndarray, top_k: int, rows: np.ndarray | None = None) -> Ranking:
    """The ``top_k`` largest of ``scores`` (float32, (n,)); of equal ones the lowest row first.

    Args:
        scores: one score per candidate.
        top_k: how many to keep.
        rows: the candidates' row numbers, ascending; None: 0, 1, 2, …
    """
    kept = np.arange(len(scores))
    if top_k < len(scores):
        # All candidates as good as the last one to be kept, so that equal scores are cut by row and not by chance.
        kept = np.flatnonzero(scores >= np.partition(scores, -top_k)[-top_k])
    kept = kept[np.lexsort((kept, -scores[kept]))][:top_k]
    numbers = kept if rows is None else rows[kept]
    return numbers.astype(np.int64), scores[kept].astype(np.float32)
