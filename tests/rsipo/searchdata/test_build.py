from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from rsipo.problems import UserError
from rsipo.searchdata.build import Choices, SimilarityFilter, build_train_set
from rsipo.searchdata.dedup import TestQuestions
from rsipo.searchdata.formats import QARow
from rsipo.searchdata.mix import Mix
from rsipo.searchdata.selection import LowestRanks, rank
from rsipo.searchdata.sources import TRAIN_SOURCES

EQUAL = Mix("equal")
CHOICES = Choices(
    seed=0,
    rl_rows=60,
    sft_rows=30,
    rl_mix=EQUAL,
    sft_mix=EQUAL,
    overlap="disjoint",
    popqa_relations="natural",
    threshold=None,
)


def build(files, choices=CHOICES, **kwargs):
    return build_train_set(files, TestQuestions.read(files.test), choices, **kwargs)


def add_rows(jsonl, path, rows):
    there = [json.loads(line) for line in path.read_text().splitlines()]
    jsonl(path, there + rows)


def test_every_source_gives_its_share_and_tasks_stay_apart(files):
    built = build(files)
    assert Counter(row.source for row in built.rl) == dict.fromkeys(TRAIN_SOURCES, 10)
    assert Counter(row.source for row in built.sft) == dict.fromkeys(TRAIN_SOURCES, 5)
    assert not {row.question for row in built.rl} & {row.question for row in built.sft}
    assert [row.source for row in built.rl] != sorted(row.source for row in built.rl)  # shuffled


def test_tasks_may_be_within_the_rl_rows(files):
    built = build(files, replace(CHOICES, overlap="within"))
    assert {row.question for row in built.sft} < {row.question for row in built.rl}
    assert sum(counts["both"] for counts in built.counts.values()) == 30
    with pytest.raises(UserError, match=r"nq: 5 SFT tasks cannot be within 1 RL rows"):
        build(files, replace(CHOICES, overlap="within", rl_rows=6))


def test_all_rows(files):
    built = build(files, replace(CHOICES, rl_rows=None, rl_mix=Mix("natural")))
    assert (len(built.rl), len(built.sft)) == (180 - 30, 30)


def test_a_seed_decides_and_the_order_of_a_file_does_not(files, jsonl):
    first = build(files)
    path = files.flashrag / "musique" / "train.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    random.Random(0).shuffle(rows)
    jsonl(path, rows)
    again = build(files)
    assert [row.question for row in again.rl] == [row.question for row in first.rl]
    assert [row.question for row in again.sft] == [row.question for row in first.sft]
    assert [row.question for row in build(files, replace(CHOICES, seed=1)).rl] != [row.question for row in first.rl]


def test_more_tasks_keep_the_earlier_ones(files):
    few = {row.question for row in build(files).sft}
    assert few < {row.question for row in build(files, replace(CHOICES, sft_rows=60)).sft}


def test_relations_may_take_turns(files, jsonl):
    few = [
        {
            "question": f"Who is the author of Book{n}?",
            "golden_answers": ["x"],
            "metadata": {"subject": f"Book{n}", "relation": "author"},
        }
        for n in range(6)
    ]
    add_rows(jsonl, files.trex_popqa, few)
    built = build(files, replace(CHOICES, popqa_relations="equal"))
    assert Counter(row.relation for row in built.rl + built.sft) == {None: 75, "author": 6, "capital": 9}


def test_exact_overlap_with_the_test_set_is_left_out_and_counted(files, jsonl):
    def popqa(n, question, subject, relation):
        fact = {"subject": subject, "relation": relation}
        return {"id": n, "question": question, "golden_answers": ["x"], "metadata": fact}

    add_rows(
        jsonl,
        files.flashrag / "triviaqa" / "train.jsonl",
        [
            {"question": "WHO WROTE “the unwritten book” ?", "golden_answers": ["x"]},  # test question of NQ
            {"question": "which river runs through elmstead", "golden_answers": ["x"]},
            {"question": "Which triviaqa thing has number 3?", "golden_answers": ["again"]},
            {"question": "What is the nq number 4?", "golden_answers": ["of another source"]},
            {"question": "who is nobody", "golden_answers": ["", "!"]},
            {"question": "Who is the AUTHOR of a silent harbour (book)", "golden_answers": ["x"]},
        ],
    )
    add_rows(
        jsonl,
        files.trex_popqa,
        [popqa(1, "Who is the author of Silent Harbour (novel)?", "Silent Harbour (novel)", "author")],
    )
    counts = build(files).counts
    assert {
        key: counts["triviaqa"][key] for key in ("read", "no_answer", "repeated", "test_question", "test_fact")
    } == {
        "read": 36,
        "no_answer": 1,
        "repeated": 2,
        "test_question": 2,
        "test_fact": 1,
    }
    assert counts["triviaqa"]["available"] == 30
    assert counts["popqa"]["test_fact"] == 1


def test_facts_of_popqas_own_test_metadata_count(tmp_path):
    from rsipo.searchdata.formats import write_processed

    row = QARow("popqa", "A reworded question about Ulm?", ("x",), {"subj": "Ulm", "prop": "country"})
    write_processed(tmp_path / "test.parquet", [row], "test")
    test = TestQuestions.read(tmp_path / "test.parquet")
    assert test.overlap(QARow("popqa", "In what country is Ulm?", ("x",))) == "test_fact"


def test_too_few_rows_are_an_error(files):
    with pytest.raises(UserError, match=r"nq has 30 rows left after de-duplication, 105 are asked for"):
        build(files, replace(CHOICES, rl_rows=600))


def test_missing_and_empty_inputs_are_named(files, tmp_path):
    path = files.flashrag / "musique" / "train.jsonl"
    path.write_text("")
    with pytest.raises(UserError, match=r"musique/train\.jsonl has no row of musique"):
        build(files)
    path.unlink()
    with pytest.raises(UserError, match=r"musique/train\.jsonl does not exist; download it from"):
        files.check()
    with pytest.raises(UserError, match=r"preprocess_search_r1_dataset\.py makes it"):
        replace(files, test=tmp_path / "none.parquet").check()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "x", "golden_answers": "x"}, None),
        ({"question": "", "golden_answers": ["x"]}, r"musique/train\.jsonl line 31: the question is no text"),
        ({"question": "x", "golden_answers": None}, "line 31: the golden answers are no list of strings"),
        ({"question": "x\ud800", "golden_answers": ["x"]}, "line 31: not valid Unicode"),
        ({"question": "x", "golden_answers": ["\ud800"]}, "line 31: not valid Unicode"),
        ({"question": 5, "golden_answers": ["x"]}, "line 31: the question is no text"),
    ],
)
def test_broken_rows_are_named(files, jsonl, row, words):
    add_rows(jsonl, files.flashrag / "musique" / "train.jsonl", [row])
    if words is None:
        assert build(files).counts["musique"]["read"] == 31
    else:
        with pytest.raises(UserError, match=words):
            build(files)


def test_lowest_ranks_of_a_stream():
    rows = [QARow("nq", f"question {n}?", ("x",)) for n in range(100)]
    kept = LowestRanks(3, 10)
    for row in rows:
        kept.offer(row)
    assert kept.in_order() == sorted(rows, key=lambda row: rank(3, "row", row))[:10]
    assert not kept.complete
    assert kept.offered == 100


class LetterEncoder:
    """A stand-in for a sentence encoder: how often each letter occurs."""

    identity = "letters"

    def __init__(self):
        self.seen = 0

    def encode(self, questions):
        self.seen += len(questions)
        counts = np.array(
            [[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in questions]
        )
        return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)


def similarity_of(files, threshold):
    test = TestQuestions.read(files.test)
    encoder = LetterEncoder()
    return SimilarityFilter(encoder, test, encoder.encode(test.questions), threshold), encoder


def test_similar_questions_are_left_out_and_listed(files, jsonl):
    add_rows(
        jsonl,
        files.flashrag / "musique" / "train.jsonl",
        [{"question": "which river runs thruogh Elmsteda", "golden_answers": ["x"]}],  # the same letters
    )
    choices = replace(CHOICES, rl_rows=None, rl_mix=Mix("natural"), threshold=0.999)
    similarity, _ = similarity_of(files, 0.999)
    built = build(files, choices, similarity=similarity)
    assert built.too_similar == [
        {
            "source": "musique",
            "question": "which river runs thruogh Elmsteda?",
            "test_question": "Which river runs through Elmstead?",
            "cosine": 1.0,
        }
    ]
    assert built.counts["musique"]["too_similar"] == 1
    assert built.counts["musique"]["examined"] == 31
    assert built.similarity["p100"] == 1.0
    assert built.closest_kept[0]["cosine"] < 0.999


def test_the_encoder_is_asked_only_as_far_as_needed(files, jsonl):
    many = [{"question": f"musique thing {n} of a long list", "golden_answers": ["x"]} for n in range(500)]
    add_rows(jsonl, files.flashrag / "musique" / "train.jsonl", many)
    similarity, encoder = similarity_of(files, 0.9999)
    built = build(files, replace(CHOICES, threshold=0.9999), similarity=similarity)
    assert built.counts["musique"]["examined"] == 64
    seen = encoder.seen
    with pytest.raises(UserError, match="asked for"):
        build(files, replace(CHOICES, rl_rows=600, threshold=0.9999), similarity=similarity)
    assert encoder.seen == seen


def test_a_threshold_that_leaves_too_little_is_an_error(files):
    similarity, _ = similarity_of(files, 0.0)
    with pytest.raises(UserError, match="nq has 0 rows left after de-duplication"):
        build(files, replace(CHOICES, threshold=0.0), similarity=similarity)


class TestMix:
    def test_shares_add_up(self):
        available = {"nq": 100, "popqa": 50, "musique": 50}
        assert EQUAL.shares(500, dict.fromkeys(TRAIN_SOURCES, 1)) == dict(
            zip(TRAIN_SOURCES, (84, 84, 83, 83, 83, 83), strict=True)
        )
        assert Mix("natural").shares(10, available) == {"nq": 5, "popqa": 3, "musique": 2}
        assert Mix.parse("nq=3, musique=1", tuple(available), "--rl-mix").shares(8, available) == {
            "nq": 6,
            "popqa": 0,
            "musique": 2,
        }

    @pytest.mark.parametrize(
        "text", ["", "even", "nq", "nq=x", "nq=-1", "nq=nan", "nq=inf", "squad=1", "nq=1,nq=2", "nq=0"]
    )
    def test_nonsense_is_refused(self, text):
        with pytest.raises(UserError, match="--rl-mix"):
            Mix.parse(text, ("nq", "popqa"), "--rl-mix")
