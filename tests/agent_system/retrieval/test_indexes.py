"""Every index against plain matrix products."""

from __future__ import annotations

import faiss
import numpy as np
import pytest

from agent_system.retrieval.indexes.base import best_rows
from agent_system.retrieval.indexes.bm25 import BM25Index, build_bm25
from agent_system.retrieval.indexes.faiss_index import FaissIndex, build_faiss
from agent_system.retrieval.indexes.matrix import MatrixIndex
from agent_system.retrieval.indexes.vectors import join_parts, open_vectors
from agent_system.retrieval.types import IndexProblem

ROWS, DIMENSION, K = 3000, 32, 5


def _unit(rng, rows):
    vectors = rng.standard_normal((rows, DIMENSION)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def vectors():
    vectors = _unit(np.random.default_rng(0), ROWS)
    vectors[2000] = vectors[10]  # a passage that stands in the corpus twice
    return vectors


@pytest.fixture(scope="module")
def queries(vectors):
    return np.concatenate([vectors[[10, 2999]], _unit(np.random.default_rng(1), 30)])


@pytest.fixture(scope="module")
def expected(vectors, queries):
    scores = queries @ vectors.T
    return np.lexsort((np.broadcast_to(np.arange(ROWS), scores.shape), -scores))[:, :K]


def _rows(index, queries):
    return np.stack([rows for rows, _ in index.search(queries, K)])


def test_equal_scores_are_cut_by_row():
    rows, scores = best_rows(np.array([1, 3, 3, 2, 3], np.float32), 2)
    assert rows.tolist() == [1, 2]
    assert scores.tolist() == [3, 3]
    assert best_rows(np.array([1.0], np.float32), 5)[0].tolist() == [0]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_matrix_in_blocks_is_exact(tmp_path, monkeypatch, vectors, queries, dtype):
    monkeypatch.setattr("agent_system.retrieval.indexes.matrix._BLOCK_BYTES", 4 * DIMENSION * 700)
    np.save(tmp_path / "v.npy", vectors.astype(dtype))
    scores = queries @ vectors.astype(dtype).astype(np.float32).T
    exact = [best_rows(row, K)[0] for row in scores]
    assert np.array_equal(_rows(MatrixIndex(tmp_path / "v.npy"), queries), exact)


def test_flat_file_of_faiss_is_read_as_a_matrix_and_by_faiss(tmp_path, vectors, queries, expected):
    build_faiss("flat", vectors, tmp_path / "flat.index", lists=1)
    assert np.array_equal(open_vectors(tmp_path / "flat.index"), vectors)
    for index in (MatrixIndex(tmp_path / "flat.index"), FaissIndex(tmp_path / "flat.index")):
        assert (index.size, index.dimension) == (ROWS, DIMENSION)
        assert np.array_equal(_rows(index, queries), expected)
        assert np.array_equal(_rows(index, queries[:1]), expected[:1])
        assert len(index.search(queries[:1], 2 * ROWS)[0][0]) == ROWS


def test_parts_joined_in_order_are_the_file(tmp_path, vectors):
    build_faiss("flat", vectors, tmp_path / "flat.index", lists=1)
    whole = (tmp_path / "flat.index").read_bytes()
    parts = [tmp_path / "part_aa", tmp_path / "part_ab"]
    parts[0].write_bytes(whole[:100_001])
    parts[1].write_bytes(whole[100_001:])
    join_parts(parts, tmp_path / "joined")
    assert (tmp_path / "joined").read_bytes() == whole
    with pytest.raises(IndexProblem, match="are all parts there"):
        open_vectors(parts[0])


@pytest.mark.parametrize(("kind", "least"), [("sq8", 0.95), ("ivf-sq8", 0.9)])
def test_quantised_indexes_find_almost_the_same(tmp_path, vectors, queries, expected, kind, least):
    build_faiss(kind, vectors, tmp_path / "i", lists=20)
    found = _rows(FaissIndex(tmp_path / "i", nprobe=16), queries)
    assert np.mean([len(set(a) & set(b)) / K for a, b in zip(found, expected, strict=True)]) >= least


def test_another_metric_and_other_files_are_refused(tmp_path, vectors):
    index = faiss.IndexFlatL2(DIMENSION)
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / "l2"))
    (tmp_path / "text").write_text("hello " * 50)
    np.save(tmp_path / "ints.npy", np.zeros((3, 4), int))
    for name in ("l2", "text", "ints.npy"):
        with pytest.raises(IndexProblem):
            MatrixIndex(tmp_path / name)
    for name in ("l2", "text"):
        with pytest.raises(IndexProblem):
            FaissIndex(tmp_path / name)


@pytest.mark.parametrize("query", ["?", "", "a b", "the", "zzz"])
def test_a_query_without_a_known_word_finds_nothing(tmp_path, query):
    build_bm25(["the red door opens", "the blue door closes"], tmp_path)
    (rows, scores), (known, _) = BM25Index(tmp_path).search([query, "red"], 2)
    assert (rows.tolist(), scores.tolist(), known.tolist()) == ([], [], [0])


def test_bm25_ranks_by_shared_words(tmp_path):
    texts = ["the red fox", "a red red door", "blue sea", "red"]
    build_bm25(texts, tmp_path)
    index = BM25Index(tmp_path)
    (red, scores), (nothing, _), (stop_words, _), (sea, _) = index.search(["Red?", "zebra", "the of", "blue sea"], 10)
    assert set(red) == {0, 1, 3}
    assert list(scores) == sorted(scores, reverse=True)
    assert len(nothing) == len(stop_words) == 0
    assert sea.tolist() == [2]
