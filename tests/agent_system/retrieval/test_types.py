"""Passages as the corpus has them."""

from __future__ import annotations

import pytest

from agent_system.retrieval.types import Passage


@pytest.mark.parametrize(
    ("contents", "title", "plain", "text"),
    [
        ('"Two words"\nSome text.', '"Two words"', "Two words", "Some text."),
        ("Word\nSome\ntext.", "Word", "Word", "Some\ntext."),
        ('"\ntext', '"', '"', "text"),
        ('"A "quoted" title"\ntext', '"A "quoted" title"', 'A "quoted" title', "text"),
    ],
)
def test_contents_are_split_and_kept(contents, title, plain, text):
    passage = Passage.from_contents("7", contents, 0.5)
    assert (passage.title, passage.plain_title, passage.text) == (title, plain, text)
    assert passage.contents == contents
