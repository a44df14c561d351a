"""Forms of a question by which two of them are the same."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NOT_WORD = re.compile(r"[\W_]+")
_DISAMBIGUATION = re.compile(r"\s*\([^()]*\)\s*$")


@lru_cache(maxsize=1024)  # every row is asked for it several times in a row
def normalise_question(text: str) -> str:
    """A coarser form for finding the same question twice: also without accents, symbols and any Unicode punctuation.

    A question of symbols alone keeps them, so that two such questions stay apart.
    """
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    bare = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    return " ".join(_ARTICLES.sub(" ", _NOT_WORD.sub(" ", bare)).split()) or " ".join(text.split())


def ask(text: str) -> str:
    """A question as Search-R1 writes it: stripped, with a question mark at the end."""
    question = text.strip()
    return question if not question or question.endswith("?") else question + "?"


def without_disambiguation(title: str) -> str:
    """``Up (2009 film)`` -> ``Up``; a title that is all parenthesis stays."""
    return _DISAMBIGUATION.sub("", title).strip() or title.strip()
