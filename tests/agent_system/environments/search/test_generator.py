"""The generated world: the same bytes for the same request, in the forms of the real data, answerable by searching alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agent_system.environments.search.generator import generate
from agent_system.environments.search.generator.names import PIECES
from agent_system.environments.search.index import load
from agent_system.environments.search.local_retriever import LocalRetriever

SMALL = {"train": 40, "test": 18, "persons": 40, "cities": 12, "countries": 6, "books": 30}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    assert generate(folder, seed=3, **SMALL).status == "written"
    return folder


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_same_request_gives_the_same_bytes_and_is_made_once(world: Path, tmp_path: Path) -> None:
    assert generate(world, seed=3, **SMALL).status == "reused"
    generate(tmp_path / "again", seed=3, **SMALL)
    generate(tmp_path / "other", seed=4, **SMALL)
    for name in ("corpus.jsonl", "train.jsonl", "test.jsonl", "MANIFEST.json"):
        assert (tmp_path / "again" / name).read_bytes() == (world / name).read_bytes()
        assert (tmp_path / "other" / name).read_bytes() != (world / name).read_bytes()


def test_other_or_changed_data_are_not_touched(tmp_path: Path) -> None:
    generate(tmp_path, seed=3, **SMALL)
    with pytest.raises(ValueError, match="holds other generated data: remove it"):
        generate(tmp_path, seed=4, **SMALL)
    (tmp_path / "train.jsonl").write_text("")
    with pytest.raises(ValueError, match="holds changed generated data"):
        generate(tmp_path, seed=3, **SMALL)
    (tmp_path / "MANIFEST.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        generate(tmp_path, seed=3, **SMALL)
    with pytest.raises(ValueError, match="questions wanted"):
        generate(tmp_path / "many", **SMALL | {"train": 1000})
    with pytest.raises(ValueError, match="2000 of kind person"):
        generate(tmp_path / "many", **SMALL | {"persons": 2000})


def test_corpus_and_questions_have_the_real_forms(world: Path) -> None:
    corpus = rows(world / "corpus.jsonl")
    assert [row["id"] for row in corpus] == [str(number) for number in range(82)]
    assert all(re.fullmatch(r'"\w+ \w+"\n.+\..+\.', row["contents"]) for row in corpus)
    tasks = load(world / "train.jsonl", "train")
    assert {task.task_type for task in tasks} == {"onehop", "twohop"}
    assert len({task.extra["question"] for task in tasks}) == len(tasks) == 40
    asked = {task.extra["question"] for task in load(world / "test.jsonl", "test")}
    subjects = {" ".join(question.rstrip("?").removesuffix(" born").split()[-2:]) for question in asked}
    assert not [task for task in tasks if any(name in task.extra["question"] for name in subjects)]


def test_no_word_of_a_name_is_in_two_lists() -> None:
    lists = {words for pair in PIECES.values() for words in pair}
    words = [word for words in lists for word in words]
    assert len(words) == len(set(words))


def test_searching_for_the_names_on_the_way_finds_the_passages(world: Path) -> None:
    """BM25 puts the passage about a name among the first three, and the last passage of the way states the answer."""
    corpus = {row["id"]: row["contents"] for row in rows(world / "corpus.jsonl")}
    retriever = LocalRetriever(world / "corpus.jsonl")
    for row in rows(world / "test.jsonl"):
        way = row["metadata"]["gold_passage_ids"]
        titles = [corpus[passage].split("\n")[0].strip('"') for passage in way]
        assert titles[0] in row["question"]
        assert all(later in corpus[earlier] for earlier, later in zip(way, titles[1:], strict=False))
        assert row["golden_answers"][0] in corpus[way[-1]]
        for passage, found in zip(way, retriever.search_sync(titles), strict=True):
            assert passage in [hit.id for hit in found]
