from __future__ import annotations

import pytest

from rsipo.report.categories import categories_of


@pytest.mark.parametrize(
    ("skill", "expected"),
    [
        ("1. Look in the cabinet.\n2. Take the mug.", {"procedure"}),
        ("To place two objects: (1) find one, (2) find the other.", {"procedure"}),
        ("Step 1: search. Step 2: place.", {"procedure"}),
        ("First search the desks, then take the cd.", {"procedure"}),
        ("Use the exact action syntax, e.g. <action>go to desk 1</action>.", {"format"}),
        ("Choose one of the admissible actions.", {"format"}),
        ("If 'Nothing happens', try another object.", {"recovery"}),
        ("When the search returns no relevant results, rephrase the query.", {"recovery"}),
        ("1) Check the command format. 2) If nothing happened, retry.", {"procedure", "format", "recovery"}),
        ("mug 1 is in cabinet 2, put it in coffeemachine 1.", set()),
        ("Version 1.2 of the plan came before 2. It is information, not formatting's business.", {"format"}),
        ("Keep to the first cabinet.", set()),
        ("", set()),
    ],
)
def test_keywords_put_a_skill_into_its_categories(skill: str, expected: set[str]) -> None:
    assert categories_of(skill) == expected
