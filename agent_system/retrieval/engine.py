"""Index, corpus and encoder together: from queries to rows of the corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agent_system.retrieval.corpus import Corpus
from agent_system.retrieval.encoders import Encoder, Precision, SentenceEncoder, encoder_identity
from agent_system.retrieval.indexes import open_index
from agent_system.retrieval.indexes.base import Ranking, TextIndex, VectorIndex
from agent_system.retrieval.manifest import Manifest
from agent_system.retrieval.types import IndexProblem

_CHECKED_ROWS, _CHECKED_RANKS, _MUST_BE_FOUND = 8, 10, 0.75


@dataclass(frozen=True, slots=True)
class Hit:
    """A row of the corpus as JSON text, verbatim, and its score."""

    document: bytes
    score: float


class Engine:
    """Answers queries; to be called from one thread at a time.

    Args:
        corpus: the passages.
        index: over the same rows.
        encoder: for an index of vectors; None for one of words.
        fingerprint: identity of the three together.

    Raises:
        IndexProblem: their sizes differ.
    """

    def __init__(
        self, corpus: Corpus, index: TextIndex | VectorIndex, encoder: Encoder | None, fingerprint: str
    ) -> None:
        if index.size != len(corpus):
            raise IndexProblem(
                f"the index has {index.size} rows, the corpus {corpus.path} has {len(corpus)}; build again"
            )
        dimension = getattr(index, "dimension", None)
        if encoder is not None and encoder.dimension != dimension:
            raise IndexProblem(
                f"the index has {dimension} dimensions, the encoder {encoder.dimension}; name the right one"
            )
        self.corpus = corpus
        self.fingerprint = fingerprint
        self._index = index
        self._encoder = encoder

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """The best rows of each query, best first; equal scores in the order of the corpus."""
        texts = queries if self._encoder is None else self._encoder.encode_queries(queries)
        return [self._hits(*ranking) for ranking in self._index.search(texts, top_k)]  # type: ignore[arg-type]

    def check(self) -> None:
        """Searches for some passages by their own text, which must find them. Also brings the index into memory.

        Raises:
            IndexProblem: they are not found: the index is of another corpus, or of another encoder.
        """
        rows = np.linspace(0, len(self.corpus) - 1, min(_CHECKED_ROWS, len(self.corpus)), dtype=int).tolist()
        texts = [self.corpus.contents(row) for row in rows]
        rankings = self._rank_passages(texts)
        found = sum(self._holds(ranking, text) for ranking, text in zip(rankings, texts, strict=True))
        if found < _MUST_BE_FOUND * len(rows):
            raise IndexProblem(
                f"only {found} of {len(rows)} passages of {self.corpus.path} are found by their own text: the index was built "
                "from another corpus or with another encoder or prefix; name the right ones"
            )

    def _rank_passages(self, texts: list[str]) -> list[Ranking]:
        if self._encoder is None:
            return self._index.search(texts, _CHECKED_RANKS)  # type: ignore[arg-type]
        return self._index.search(self._encoder.encode_passages(texts), _CHECKED_RANKS)  # type: ignore[arg-type]

    def _holds(self, ranking: Ranking, text: str) -> bool:
        """By text, as a corpus may hold a passage twice."""
        return any(self.corpus.contents(int(row)) == text for row in ranking[0])

    def _hits(self, rows: np.ndarray, scores: np.ndarray) -> list[Hit]:
        return [Hit(self.corpus.row(int(row)), float(score)) for row, score in zip(rows, scores, strict=True)]


def open_engine(
    folder: Path, *, encoder: Path | None = None, precision: Precision = "float32", every_byte: bool = False
) -> Engine:
    """Opens an index folder after checking that its parts fit.

    Args:
        folder: made by ``build_index``.
        encoder: the model folder; None: where it was at building.
        precision: of the encoder.
        every_byte: compare whole files with their hashes, not samples of them.

    Raises:
        IndexProblem: a file is missing or changed; another encoder; sizes that differ.
    """
    manifest = Manifest.load(folder)
    corpus_path = manifest.corpus.check(folder, every_byte=every_byte)
    offsets = np.load(manifest.offsets.check(folder, every_byte=every_byte), mmap_mode="r")
    for facts in manifest.index:
        facts.check(folder, every_byte=every_byte)
    model = _open_encoder(manifest, encoder, precision)
    return Engine(Corpus(corpus_path, offsets), open_index(manifest, folder), model, manifest.fingerprint)


def _open_encoder(manifest: Manifest, path: Path | None, precision: Precision) -> Encoder | None:
    facts = manifest.encoder
    if facts is None:
        if path is not None:
            raise IndexProblem(f"a {manifest.kind} index has no encoder; leave it out")
        return None
    path = path or Path(facts.path)
    model = SentenceEncoder(facts, path=path, precision=precision)
    if encoder_identity(path) != facts.identity:
        raise IndexProblem(f"{path} is another encoder than the index was built with ({facts.path}); name that one")
    return model
