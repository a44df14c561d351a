"""Index folders: built, reused, continued, and refused when their parts do not fit."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from agent_system.retrieval.build import BuildRequest, build_index
from agent_system.retrieval.encoders import SentenceEncoder, describe_encoder
from agent_system.retrieval.engine import Engine, open_engine
from agent_system.retrieval.indexes.base import best_rows
from agent_system.retrieval.indexes.faiss_index import build_faiss
from agent_system.retrieval.indexes.vectors import encode_corpus
from agent_system.retrieval.manifest import MANIFEST
from agent_system.retrieval.types import IndexProblem


@pytest.fixture
def bm25_copy(bm25_folder, tmp_path):
    """A copy that may be damaged."""
    return shutil.copytree(bm25_folder, tmp_path / "copy")


@pytest.fixture(scope="module")
def dense_folder(corpus_file, minilm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dense")
    build_index(folder, BuildRequest(corpus_file, "matrix", encoder=minilm))
    return folder


def test_bm25_folder_answers_with_rows_of_the_corpus(bm25_engine, corpus):
    [hits] = bm25_engine.search(["When was the violin of Cadmoor opened?"], 3)
    assert json.loads(hits[0].document)["contents"].startswith('"Cadmoor violin"')
    assert hits[0].document == corpus.row(18)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    bm25_engine.check()


def test_a_finished_folder_is_reused_and_not_overwritten(bm25_folder, corpus_file, tmp_path):
    request = BuildRequest(corpus_file, "bm25")
    before = (bm25_folder / MANIFEST).read_bytes()
    assert build_index(bm25_folder, request)[1] == "reused"
    other = tmp_path / "other.jsonl"
    other.write_bytes(corpus_file.read_bytes() + b'\n{"id": "x", "contents": "more\\nmore"}')
    with pytest.raises(IndexProblem, match="holds an index of another"):
        build_index(bm25_folder, replace(request, corpus=other))
    assert (bm25_folder / MANIFEST).read_bytes() == before


def test_a_folder_without_manifest_is_no_index(tmp_path):
    with pytest.raises(IndexProblem, match="no finished index"):
        open_engine(tmp_path)


def test_missing_and_changed_files_are_noticed(bm25_copy):
    offsets = bm25_copy / "offsets.npy"
    data = offsets.read_bytes()
    offsets.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(IndexProblem, match="has changed since"):
        open_engine(bm25_copy)
    offsets.write_bytes(data[:-8])
    with pytest.raises(IndexProblem, match="bytes, but the index was built with"):
        open_engine(bm25_copy)
    offsets.unlink()
    with pytest.raises(IndexProblem, match="is missing"):
        open_engine(bm25_copy)


def test_a_manifest_from_elsewhere_is_refused(bm25_copy):
    path = bm25_copy / MANIFEST
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"rows": "many"}))
    with pytest.raises(IndexProblem, match="cannot be read"):
        open_engine(bm25_copy)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kind": "matrix"}, "needs an encoder"),
        ({"corpus": "nowhere"}, "is missing"),
        ({"kind": "matrix", "encoder": "nowhere"}, "no folder of an encoder"),
    ],
)
def test_bad_requests(corpus_file, tmp_path, change, problem):
    change = {name: tmp_path / value if name != "kind" else value for name, value in change.items()}
    with pytest.raises(IndexProblem, match=problem):
        build_index(tmp_path / "out", replace(BuildRequest(corpus_file, "bm25"), **change))
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_real_encoder_finds_by_meaning(dense_folder, minilm):
    engine = open_engine(dense_folder, encoder=minilm)
    engine.check()
    [hits] = engine.search(["a string instrument in Cadmoor"], 2)
    assert json.loads(hits[0].document)["contents"].startswith('"Cadmoor violin"')


def test_another_encoder_is_refused(dense_folder, minilm, tmp_path):
    other = shutil.copytree(minilm, tmp_path / "other")
    (other / "vocab.txt").write_text("changed")
    with pytest.raises(IndexProblem, match="another encoder"):
        open_engine(dense_folder, encoder=other)


def test_an_index_of_another_corpus_is_found_out(dense_folder, corpus, minilm):
    """The sizes fit, the contents do not."""
    engine = open_engine(dense_folder)

    class Shuffled:
        size, dimension = engine._index.size, engine._index.dimension

        def search(self, queries, top_k):
            return [((rows + 31) % len(corpus), scores) for rows, scores in engine._index.search(queries, top_k)]

    with pytest.raises(IndexProblem, match="are found by their own text"):
        Engine(corpus, Shuffled(), SentenceEncoder(describe_encoder(minilm)), "f").check()


def test_ready_vectors_must_fit_the_corpus(corpus_file, minilm, tmp_path):
    np.save(tmp_path / "v.npy", np.ones((63, 384), np.float32))
    request = BuildRequest(corpus_file, "matrix", encoder=minilm, vectors=[tmp_path / "v.npy"])
    with pytest.raises(IndexProblem, match="holds 63 vectors of 384 numbers; the corpus has 64 rows"):
        build_index(tmp_path / "out", request)
    np.save(tmp_path / "v.npy", np.random.default_rng(0).standard_normal((64, 384)).astype(np.float32))
    with pytest.raises(IndexProblem, match="are found by their own text"):
        build_index(tmp_path / "out", request)
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_downloaded_parts_of_a_flat_index_become_a_matrix(dense_folder, corpus_file, minilm, tmp_path):
    """As the published files come: a packed corpus, and a FAISS file cut in two at any byte."""
    build_faiss("flat", np.load(dense_folder / "vectors.npy"), tmp_path / "flat", lists=1)
    whole = (tmp_path / "flat").read_bytes()
    parts = [tmp_path / "part_aa", tmp_path / "part_ab"]
    parts[0].write_bytes(whole[:50_001])
    parts[1].write_bytes(whole[50_001:])
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(corpus_file.read_bytes()))
    manifest, _ = build_index(tmp_path / "index", BuildRequest(packed, "matrix", encoder=minilm, vectors=parts))
    assert manifest.index[0].path == "vectors.index"
    question = ["a string instrument in Cadmoor"]
    assert open_engine(tmp_path / "index").search(question, 3) == open_engine(dense_folder).search(question, 3)


def test_prefixes_follow_the_model(minilm, tmp_path):
    e5 = shutil.copytree(minilm, tmp_path / "e5-base-v2")
    facts = describe_encoder(e5)
    assert (facts.query_prefix, facts.passage_prefix, facts.passage_tokens) == ("query: ", "passage: ", 180)
    assert describe_encoder(e5, query_prefix="Q ").query_prefix == "Q "
    plain = describe_encoder(minilm)
    assert (plain.query_prefix, plain.passage_prefix, plain.identity) == ("", "", facts.identity)
    encoder = SentenceEncoder(facts)
    vectors = encoder.encode_queries(["red fox", "red  fox " * 500])
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    bare = SentenceEncoder(plain)
    assert np.allclose(vectors[0], bare.encode_passages(["query: red fox"])[0], atol=1e-5)


class CountingEncoder:
    """Stands in for a model: a passage becomes its length; breaks down after a number of passages."""

    dimension = 1

    def __init__(self, breaks_after: int) -> None:
        self.left = breaks_after
        self.seen = 0

    def encode_passages(self, texts):
        if len(texts) > self.left:
            raise KeyboardInterrupt
        self.left -= len(texts)
        self.seen += len(texts)
        return np.array([[len(text)] for text in texts], np.float32)


def test_interrupted_encoding_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("agent_system.retrieval.indexes.vectors._CHUNK_ROWS", 10)
    texts = ["x" * n for n in range(1, 36)]
    target = tmp_path / "v.npy"

    def encode(encoder, key="k"):
        encode_corpus(lambda start: iter(texts[start:]), len(texts), encoder, target, key)

    with pytest.raises(KeyboardInterrupt):
        encode(CountingEncoder(25))
    assert not target.exists()
    second = CountingEncoder(100)
    encode(second)
    assert second.seen == 15
    assert np.load(target)[:, 0].tolist() == list(range(1, 36))
    target.unlink()
    with pytest.raises(KeyboardInterrupt):
        encode(CountingEncoder(25))
    other = CountingEncoder(100)
    encode(other, key="another corpus")
    assert other.seen == 35


def test_best_rows_of_nothing():
    assert best_rows(np.empty(0, np.float32), 3)[0].size == 0
