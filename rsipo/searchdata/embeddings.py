"""Similarity of training questions to the test questions, by a sentence encoder, with the test embeddings kept on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from agent_system.files import file_sha256, replacing
from rsipo.problems import UserError
from rsipo.searchdata.files import write_json

ENCODE_ROWS = 256
_COMPARE_ROWS = 8192


class QuestionEncoder(Protocol):
    """What is needed of an encoder.

    Attributes:
        identity: changes when the model or the way it is used does.
    """

    identity: str

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        """Unit vectors, float32, shape (questions, dimension)."""
        ...


def questions_sha256(questions: Sequence[str]) -> str:
    """Identity of a list of questions in this order."""
    digest = hashlib.sha256()
    for question in questions:
        data = question.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def encode_all(
    encoder: QuestionEncoder, questions: Sequence[str], advance: Callable[[int], None] = lambda _: None
) -> np.ndarray:
    """Encode in batches; float32, shape (questions, dimension).

    Raises:
        UserError: the encoder gives no unit vectors, so that no comparison would mean anything.
    """
    parts = []
    for start in range(0, len(questions), ENCODE_ROWS):
        part = questions[start : start + ENCODE_ROWS]
        vectors = np.asarray(encoder.encode(part), dtype=np.float32)
        if not np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-2):
            raise UserError(
                "the encoder gives vectors that are not finite or not of length one; use another, or --encoder none"
            )
        parts.append(vectors)
        advance(len(part))
    return np.concatenate(parts)


def cached_embeddings(
    encoder: QuestionEncoder,
    questions: Sequence[str],
    cache: Path,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[np.ndarray, bool]:
    """Embeddings of the test questions, from ``cache`` if it was made by this model from these questions.

    The key stands beside the ``.npy`` in a ``.json``: model, questions, shape, and the hash of the ``.npy`` itself, so
    that neither another model's nor a half-written file is ever taken for the right one.

    Returns:
        The embeddings, float32, shape (questions, dimension), and whether they came from the cache.
    """
    key_file = cache.with_suffix(".json")
    key = {"encoder": encoder.identity, "questions_sha256": questions_sha256(questions), "questions": len(questions)}
    if _matches(cache, key_file, key):
        return np.load(cache, allow_pickle=False), True
    embeddings = encode_all(encoder, questions, advance)
    with replacing(cache) as temporary, temporary.open("wb") as file:
        np.save(file, embeddings, allow_pickle=False)
    write_json(key_file, {**key, "dimension": int(embeddings.shape[1]), "sha256": file_sha256(cache)})
    return embeddings, False


def _matches(cache: Path, key_file: Path, key: dict[str, object]) -> bool:
    try:
        found = json.loads(key_file.read_text(encoding="utf-8"))
        return all(found[name] == value for name, value in key.items()) and found["sha256"] == file_sha256(cache)
    except (OSError, ValueError, TypeError, KeyError):
        return False


def closest(rows: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For every row its largest cosine with a test question, and that question's number.

    Args:
        rows: unit vectors, shape (n, dimension).
        test: unit vectors, shape (m, dimension); compared in blocks, so memory is n times the block, not n times m.

    Returns:
        float32 and int64, shape (n,).
    """
    best = np.full(len(rows), -np.inf, dtype=np.float32)
    where = np.zeros(len(rows), dtype=np.int64)
    for start in range(0, len(test), _COMPARE_ROWS):
        cosine = rows @ test[start : start + _COMPARE_ROWS].T
        index = cosine.argmax(axis=1)
        value = cosine[np.arange(len(rows)), index]
        better = value > best
        best[better], where[better] = value[better], index[better] + start
    return best, where
