from __future__ import annotations

import json

import pytest

from agent_system.environments.search.observations import render
from agent_system.retrieval.types import Passage

PASSAGES = [
    Passage.from_contents("7", '"Jane Austen"\nJane Austen wrote ""Emma"".\nShe was born in Steventon. ', 2.0),
    Passage.from_contents("9", "Besançon\nA city in France.", 1.0),
]


def test_the_default_form_is_one_line_of_escaped_json() -> None:
    assert render(PASSAGES, "json") == (
        '<information>{"result": "Doc 1: \\"Jane Austen\\"\\nJane Austen wrote \\"\\"Emma\\"\\".\\nShe was born in '
        'Steventon.\\nDoc 2: Besan\\u00e7on\\nA city in France.\\n"}</information>'
    )


def test_json_can_keep_its_letters() -> None:
    text = render(PASSAGES, "json_unicode")
    assert "Besançon" in text
    assert json.loads(text[len("<information>") : -len("</information>")]) == json.loads(
        render(PASSAGES, "json")[len("<information>") : -len("</information>")]
    )


def test_the_plain_form_is_search_r1s() -> None:
    assert render(PASSAGES, "plain") == (
        '<information>Doc 1(Title: "Jane Austen") Jane Austen wrote ""Emma"".\nShe was born in Steventon. \n'
        "Doc 2(Title: Besançon) A city in France.</information>"
    )


@pytest.mark.parametrize(
    ("form", "text"), [("json", '{"result": "No search results found."}'), ("plain", "No search results found.")]
)
def test_nothing_found_is_said(form: str, text: str) -> None:
    assert render([], form) == f"<information>{text}</information>"  # type: ignore[arg-type]
