from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_system.environments.alfworld.projection import TAGS, project


@pytest.mark.parametrize(
    ("response", "action"),
    [
        ("<think>the mug is there</think><action>go to desk 1</action>", "go to desk 1"),
        ("<think>\nstep by step\n</think>\n\n<action>\n  Go to   Desk 1\n</action>\n", "go to desk 1"),
        ("Sure. <think></think> So: <action>look</action> Done.", "look"),
        ("<think>naïve café</think><action>look</action>", "look"),
    ],
)
def test_valid_responses(response: str, action: str) -> None:
    result = project(response)
    assert (result.text, result.valid, result.reason) == (action, True, "")


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ("", "missing <think>"),
        ("go to desk 1", "missing <think>"),
        ("<action>look</action>", "missing <think>"),
        ("a</think><action>look</action>", "missing <think>"),
        ("<THINK>a</THINK><action>look</action>", "missing <think>"),
        ("<think>a<action>look</action>", "missing </think>"),
        ("<think>a</think>look", "missing <action>"),
        ("<think>a</think>look</action>", "missing <action>"),
        ("<think>a</think><action>look", "missing </action>"),
        ("<action>look</action><think>a</think>", "tags out of order"),
        ("</think>a<think><action>look</action>", "tags out of order"),
        ("<think>a<action>look</action></think>", "tags out of order"),
        ("<think>a</think></action>look<action>", "tags out of order"),
        ("<action><think>a</think>look</action>", "tags out of order"),
        ("<think>a</think><think>b</think><action>look</action>", "2 times <think>"),
        ("<think>a</think><action>look</action><action>help</action>", "2 times <action>"),
        ("<think>a</think><action>x<action>look</action></action>", "2 times <action>"),
        ("<think>a</think><action>look</action></action>", "2 times </action>"),
        ("<think>a</think><action> \n </action>", "empty action"),
        ("<think>先看看</think><action>look</action>", "CJK characters"),
        ("<think>a</think><action>看 desk</action>", "CJK characters"),
        ("<think>ひらがな</think><action>look</action>", "CJK characters"),
        ("<think>한국어</think><action>look</action>", "CJK characters"),
        ("<think>。</think><action>look</action>", "CJK characters"),
    ],
)
def test_invalid_responses_say_why(response: str, reason: str) -> None:
    result = project(response)
    assert (result.valid, result.reason) == (False, reason)


@pytest.mark.parametrize(
    ("response", "played"),
    [
        ("<action> Look </action>", "look"),
        ("<action>look</action><think>a</think>", "look"),
        ("<think>a</think><action>look</action><action>help</action>", "look"),
        ("<think>a</think><action>x<action>look</action></action>", "look"),
        ("Go to\nDesk 1", "go to desk 1"),
        ("I think that I should go over to the shelf", "i should go over to the shelf"),
        ("", "invalid action"),
    ],
)
def test_an_invalid_response_plays_its_first_block_or_its_last_characters(response: str, played: str) -> None:
    assert project(response).text == played


@given(st.lists(st.sampled_from([*TAGS, "look", " ", "go to desk 1"]), max_size=9))
def test_valid_means_the_four_tags_once_in_order(parts: list[str]) -> None:
    result = project("".join(parts))
    tags = [part for part in parts if part in TAGS]
    between = "".join(parts[parts.index("<action>") + 1 : parts.index("</action>")]) if tags == list(TAGS) else ""
    assert result.valid == bool(between.strip())
    assert result.valid == (result.reason == "")
    assert result.text == result.text.strip()
