"""Do the indexes find the gold passages of real questions?"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from agent_system.retrieval.build import BuildRequest, build_index
from agent_system.retrieval.engine import open_engine

pytestmark = pytest.mark.data
SINGLE_HOP = ("nq", "triviaqa", "popqa")


@pytest.fixture(scope="module")
def data() -> Path:
    for folder in Path(__file__).parents:
        if (found := folder.parent / "shared" / "data" / "search").is_dir():
            return found
    pytest.skip("the real search slice is not beside the project (shared/data/search)")


@pytest.fixture(scope="module")
def gold(data) -> list[dict]:
    rows = map(json.loads, (data / "gold_test.jsonl").read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["gold_passage_ids"]]


def _any_at_3(folder: Path, gold: list[dict]) -> float:
    """Share of the questions with a gold passage among the first three."""
    found = open_engine(folder).search([row["question"] for row in gold], 3)
    ids = [{json.loads(hit.document)["id"] for hit in hits} for hits in found]
    return sum(bool(seen & set(row["gold_passage_ids"])) for seen, row in zip(ids, gold, strict=True)) / len(gold)


def test_bm25_on_the_whole_slice(data, gold, tmp_path):
    build_index(tmp_path, BuildRequest(data / "corpus" / "wiki-18-mini.jsonl.gz", "bm25"))
    sample = [row for row in gold if row["data_source"] in SINGLE_HOP][:300]
    assert _any_at_3(tmp_path, sample) > 0.8


def test_a_real_encoder_among_distractors(data, gold, minilm, tmp_path):
    """Few passages, as encoding one takes tens of milliseconds on a CPU."""
    questions = random.Random(0).sample([row for row in gold if row["data_source"] in SINGLE_HOP], 15)
    wanted = {number for row in questions for number in row["gold_passage_ids"]}
    with gzip.open(data / "corpus" / "wiki-18-mini.jsonl.gz", "rt", encoding="utf-8") as file:
        kept = [line for number, line in enumerate(file) if number % 600 == 0 or str(number) in wanted]
    (tmp_path / "corpus.jsonl").write_text("".join(kept), encoding="utf-8")
    build_index(tmp_path / "index", BuildRequest(tmp_path / "corpus.jsonl", "matrix", encoder=minilm))
    assert _any_at_3(tmp_path / "index", questions) > 0.9
