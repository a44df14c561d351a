"""Indexes behind two interfaces: of words, and of vectors."""

from __future__ import annotations

from pathlib import Path

from agent_system.retrieval.indexes.base import TextIndex, VectorIndex
from agent_system.retrieval.manifest import Manifest
from agent_system.retrieval.types import IndexProblem


def open_index(manifest: Manifest, folder: Path) -> TextIndex | VectorIndex:
    """The index of a folder, mapped into memory where its kind can be.

    Raises:
        IndexProblem: its files cannot be read, or its package is not installed.
    """
    path = manifest.index[0].locate(folder)
    try:
        if manifest.kind == "bm25":
            from agent_system.retrieval.indexes.bm25 import BM25Index

            return BM25Index(path.parent)
        if manifest.kind == "matrix":
            from agent_system.retrieval.indexes.matrix import MatrixIndex

            return MatrixIndex(path)
        from agent_system.retrieval.indexes.faiss_index import FaissIndex

        return FaissIndex(path, nprobe=manifest.nprobe or 1)
    except ImportError as error:
        raise IndexProblem(f'a {manifest.kind} index needs a package ({error}); pip install "rsipo[search]"') from error
