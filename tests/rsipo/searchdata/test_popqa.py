from __future__ import annotations

import pytest

from rsipo.searchdata.popqa import TEMPLATES, fact_key, fact_of_question, popqa_question, popqa_relation
from rsipo.searchdata.text import ask, normalise_question, without_disambiguation


@pytest.mark.parametrize("relation", sorted(TEMPLATES))
def test_a_question_tells_its_own_fact(relation):
    question = popqa_question("Überland (2009 film)", relation)
    assert fact_of_question(question) == ("uberland", relation) == fact_key("the Uberland", relation)
    assert fact_of_question(question.upper().rstrip("?") + " ?") == ("uberland", relation)


def test_other_questions_tell_no_fact():
    assert fact_of_question("who plays the mayor in the film?") is None
    assert fact_of_question("What is the capital of?") is None


def test_every_real_popqa_question_tells_a_fact(search_data):
    from rsipo.searchdata.formats import read_processed

    rows = [
        row
        for row in read_processed(search_data / "searchr1_processed_direct" / "test.parquet")
        if row.source == "popqa"
    ]
    assert len(rows) == 200
    assert all(fact_of_question(row.question) for row in rows)


def test_relation_names():
    assert popqa_relation("Place  of Birth") == "place of birth"
    assert popqa_relation(" religion or worldview ") == "religion"
    assert popqa_relation("country of citizenship") is None


def test_normal_forms():
    assert normalise_question("Who’s  the “Café” owner?") == normalise_question("who s cafe OWNER")
    assert normalise_question("???") != normalise_question("!!!")
    assert ask("  who is it ") == "who is it?"
    assert ask("who?") == "who?"
    assert ask("  ") == ""
    assert without_disambiguation("Up (2009 film)") == "Up"
    assert without_disambiguation("(500)") == "(500)"
