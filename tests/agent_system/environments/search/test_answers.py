"""Exact match by the published normalisation, on cases made by hand and on the real golden answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_system.environments.search.answers import exact_match, normalise
from agent_system.environments.search.index import load


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("The Beatles", "beatles"),
        ("  an   Apple\ta day ", "apple day"),
        ("U.S.A.", "usa"),
        ("rock'n'roll", "rocknroll"),
        ("1,234.5", "12345"),
        ("A-Team", "ateam"),  # punctuation goes before the articles
        ("Los-Angeles the city", "losangeles city"),
        ("theatre", "theatre"),
        ("Beyoncé", "beyoncé"),
        ("“Emma”", "“emma”"),  # typographic quotes and dashes are no ASCII punctuation
        ("1914–1918", "1914–1918"),
        ("The", ""),
        ("!?", ""),
    ],
)
def test_the_normalisation_is_the_published_one(text: str, normalised: str) -> None:
    assert normalise(text) == normalised


@pytest.mark.parametrize(
    ("answer", "golden", "matches"),
    [
        ("the jane austen.", ["Jane Austen"], True),
        ("Austen", ["Jane Austen", "austen"], True),
        ("Jane Austen, the novelist", ["Jane Austen"], False),  # exact, not contained
        ("Beyonce", ["Beyoncé"], False),
        ("", ["Jane Austen"], False),
        ("no", ["No."], True),
        ("The The", ["The The"], True),
        ("the the", ["The The", "Matt Johnson"], True),
        ("The", ["The The"], False),
        ("", ["The The", "!"], False),  # the published metric says true
        (" ", ["", " "], False),
        ("x", [], False),
    ],
)
def test_exact_match(answer: str, golden: list[str], matches: bool) -> None:
    assert exact_match(answer, golden) is matches


@given(st.text(max_size=12))
def test_normalising_twice_changes_nothing_and_an_answer_matches_itself(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)
    assert exact_match(text, [text]) == bool(text.strip())


@pytest.mark.data
def test_every_real_golden_answer_matches_itself(search_data: Path) -> None:
    tasks = load(search_data / "searchr1_raw" / "test.parquet", "test")
    assert len(tasks) == 1229
    assert all(exact_match(f" {answer} ", task.extra["answers"]) for task in tasks for answer in task.extra["answers"])
