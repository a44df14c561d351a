"""A BM25 retriever in the calling process, over a corpus that fits into memory: for demonstrations and tests."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agent_system.retrieval.types import Passage


class LocalRetriever:
    """Answers as a server with a BM25 index of the same corpus does, with the interface of ``RetrieverClient``.

    Args:
        corpus: JSON lines ``{"id", "contents"}``, may be gzipped.
        top_k: passages per query.
    """

    def __init__(self, corpus: Path, *, top_k: int = 3) -> None:
        from agent_system.retrieval.indexes.bm25 import BM25Index, build_bm25

        self._top_k = top_k
        opener = gzip.open if corpus.suffix == ".gz" else open
        with opener(corpus, "rt", encoding="utf-8") as file:
            self._rows = [json.loads(line) for line in file]
        with tempfile.TemporaryDirectory(prefix="rsipo-bm25-") as folder:
            build_bm25((row["contents"] for row in self._rows), Path(folder))
            self._index = BM25Index(Path(folder))  # maps its files, which need no name any more

    def search_sync(self, queries: Sequence[str], top_k: int | None = None) -> list[list[Passage]]:
        """The best passages of each query, best first."""
        rankings = self._index.search(queries, top_k or self._top_k)
        return [
            [self._passage(row, score) for row, score in zip(rows.tolist(), scores.tolist(), strict=True)]
            for rows, scores in rankings
        ]

    async def search(self, queries: Sequence[str], top_k: int | None = None) -> list[list[Passage]]:
        """``search_sync``, which takes a millisecond a query."""
        return self.search_sync(queries, top_k)

    async def aclose(self) -> None:
        """Nothing to close."""

    def _passage(self, row: int, score: float) -> Passage:
        return Passage.from_contents(str(self._rows[row]["id"]), self._rows[row]["contents"], score)
