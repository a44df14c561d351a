from __future__ import annotations

import json

import pytest

from rsipo.problems import UserError
from rsipo.searchdata.sources import read_popqa_like
from rsipo.searchdata.trex import OUTPUT, build_trex_popqa

ROWS = [
    ("Up (2009 film) [SEP] director", ["Pete Docter"]),
    ("Up (2009 film) [SEP] date of publication", ["2009"]),
    ("Nauru [SEP] Religion or Worldview", ["Christianity", " "]),
    ("Up (2009 film) [SEP] director", ["Bob Peterson", "Pete Docter"]),
    ("Up (2004 film) [SEP] director", ["Someone Else"]),
    ("Rome [SEP] capital of", ["the Rome"]),
    ("Blue [SEP] color", ["!"]),
    (" [SEP] author", ["X"]),
]


def trex(jsonl, path, rows=ROWS):
    return jsonl(path, [{"id": str(n), "question": q, "golden_answers": a} for n, (q, a) in enumerate(rows)])


def test_facts_become_questions(tmp_path, jsonl):
    source = trex(jsonl, tmp_path / "train.jsonl")
    seen = []
    report = build_trex_popqa(source, tmp_path / OUTPUT, keep_disambiguation=True, advance=seen.append)
    found = [(row.question, row.answers, row.relation) for row in read_popqa_like(tmp_path / OUTPUT)]
    assert found == [
        ("Who was the director of Up (2009 film)?", ("Pete Docter", "Bob Peterson"), "director"),
        ("What is the religion of Nauru?", ("Christianity",), "religion"),
        ("Who was the director of Up (2004 film)?", ("Someone Else",), "director"),
    ]
    assert sum(seen) == source.stat().st_size
    assert report.rows == 8
    assert report.other_relations == {"date of publication": 1}
    assert report.left_out == {"answer is the subject": 1, "no answer": 1, "no subject": 1}
    assert (report.merged_rows, report.several_answers) == (1, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.jsonl", OUTPUT]


def test_equally_named_subjects_may_be_merged(tmp_path, jsonl):
    source = trex(jsonl, tmp_path / "train.jsonl")
    build_trex_popqa(source, tmp_path / OUTPUT, keep_disambiguation=False)
    first = next(read_popqa_like(tmp_path / OUTPUT))
    assert first.question == "Who was the director of Up?"
    assert first.answers == ("Pete Docter", "Bob Peterson", "Someone Else")


def test_the_real_triples(search_data, tmp_path):
    report = build_trex_popqa(
        search_data / "flashrag" / "trex" / "train.jsonl", tmp_path / OUTPUT, keep_disambiguation=True
    )
    assert sum(report.questions.values()) == 564
    assert report.rows == 1178 == 564 + sum(report.other_relations.values())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"question": "a [SEP] author", "golden_answers": ["x"]}\n{"question": "a [S', "line 2 is not JSON"),
        ('{"question": "who wrote it?", "golden_answers": ["x"]}\n', r"line 1: the question is not of the form"),
        ('{"question": "a [SEP] author"}\n', "line 1: the golden answers are no list"),
        ('{"question": "a [SEP] author", "golden_answers": [1]}\n', "line 1: the golden answers are no list"),
        ("[]\n", "line 1 is no JSON object"),
        ('{"question": "a [SEP] date", "golden_answers": ["x"]}\n', "no row of a PopQA relation among its 1"),
        ("", "no row of a PopQA relation"),
    ],
)
def test_broken_input_fails_and_leaves_nothing(tmp_path, content, words):
    source = tmp_path / "train.jsonl"
    source.write_text(content)
    with pytest.raises(UserError, match=words):
        build_trex_popqa(source, tmp_path / OUTPUT, keep_disambiguation=True)
    assert list(tmp_path.iterdir()) == [source]


def test_bytes_that_are_no_text_fail(tmp_path):
    (tmp_path / "train.jsonl").write_bytes(b'{"question": "\xff [SEP] author"}\n')
    with pytest.raises(UserError, match="line 1 is not JSON"):
        build_trex_popqa(tmp_path / "train.jsonl", tmp_path / OUTPUT, keep_disambiguation=True)


def test_output_is_utf8_json_lines(tmp_path, jsonl):
    source = trex(jsonl, tmp_path / "train.jsonl", [("Łódź [SEP] country", ["Polska"])])
    build_trex_popqa(source, tmp_path / OUTPUT, keep_disambiguation=True)
    assert json.loads((tmp_path / OUTPUT).read_text(encoding="utf-8")) == {
        "id": "trex_popqa_0",
        "question": "In what country is Łódź?",
        "golden_answers": ["Polska"],
        "metadata": {"relation": "country", "subject": "Łódź"},
    }
