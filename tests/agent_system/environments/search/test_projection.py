"""Strict tags: what is extracted, and when a response is invalid, are independent of each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_system.environments.search.projection import answer_of, project, query_of

VALID = ""
NO_BLOCK = "no complete <search> or <answer> block"
BOTH = "both <search> and <answer>"


@pytest.mark.parametrize(
    ("response", "action", "reason"),
    [
        ("<think>a</think><search> who wrote Emma </search>", "<search>who wrote Emma</search>", VALID),
        ("<think>a</think>\n<answer>\nJane Austen\n</answer>", "<answer>Jane Austen</answer>", VALID),
        ("<search>no thoughts</search>", "<search>no thoughts</search>", VALID),  # <think> is not checked
        ("<SEARCH>q</Search>", "<search>q</search>", VALID),
        ("<search>two\nlines</search> and more", "<search>two\nlines</search>", VALID),
        ("<search></search>", "<search></search>", VALID),
        ("<think><search></think>", "", NO_BLOCK),
        ("", "", NO_BLOCK),
        ("Jane Austen", "", NO_BLOCK),
        ("<answer>Jane Austen", "", NO_BLOCK),
        ("</answer>Jane Austen<answer>", "", NO_BLOCK),
        ("<search>q</search><search>r</search>", "<search>q</search>", "2 times <search>"),
        ("<answer>a</answer><answer>b</answer><answer>c</answer>", "<answer>a</answer>", "3 times <answer>"),
        ("<search>q</search><answer>a</answer>", "<search>q</search>", BOTH),
        ("<answer>a</answer> ... <search>q</search>", "<search>q</search>", BOTH),  # </search> cuts, wherever it stands
        ("<answer>a</answer></search>", "<answer>a</answer>", VALID),
        ("<answer>a</search></answer>", "", NO_BLOCK),
        ("<search>q<answer>a</answer>", "<answer>a</answer>", BOTH),
        ("<search>q <search>r</search>", "<search>q <search>r</search>", "2 times <search>"),
        ("<search>İ</SEARCH> tail", "<search>İ</search>", VALID),  # a letter that is longer in lower case
    ],
)
def test_extraction_and_verdict(response: str, action: str, reason: str) -> None:
    result = project(response)
    assert (result.text, result.valid, result.reason) == (action, not reason, reason)


def test_query_and_answer_of_an_action() -> None:
    assert (query_of("<search>q</search>"), answer_of("<search>q</search>")) == ("q", None)
    assert (query_of("<answer>a</answer>"), answer_of("<answer>a</answer>")) == (None, "a")
    assert (query_of(""), answer_of("")) == (None, None)


PARTS = ["<search>", "</search>", "<answer>", "</answer>", "<think>", "</think>", "x", " "]


@given(st.lists(st.sampled_from(PARTS), max_size=9))
def test_an_action_is_one_block_or_nothing(parts: list[str]) -> None:
    result = project("".join(parts))
    assert result.valid == (result.reason == "")
    assert not result.valid or (query_of(result.text) is None) != (answer_of(result.text) is None)
    if result.text:
        assert result.text.startswith(("<search>", "<answer>"))
        assert result.text.endswith(("</search>", "</answer>"))
