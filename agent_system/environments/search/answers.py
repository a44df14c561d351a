"""Exact match, by the normalisation with which the published numbers of these datasets are computed."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalise(text: str) -> str:
    """Lower case, no ASCII punctuation, articles to spaces, single spaces (SQuAD's ``normalize_answer``).

    Typographic quotes and dashes and accents stay, as in the published metric.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, golden: Iterable[str]) -> bool:
    """Whether ``answer`` equals any golden answer after normalisation.

    Nothing is left of some golden answers ("The The", "!"), which the published metric lets an empty answer match. Here such
    answers are compared as written, without regard to case, so that an empty answer never scores.
    """
    normalised = normalise(answer)
    if normalised:
        return any(normalised == normalise(candidate) for candidate in golden)
    written = answer.strip().lower()
    return bool(written) and any(written == candidate.strip().lower() for candidate in golden)
