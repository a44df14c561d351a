"""Writes a generated world in the forms of the real data: corpus as wiki-18, questions as FlashRAG's JSON lines."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent_system.environments.search.generator.world import QUESTION_KINDS, Question, World, make_world
from agent_system.files import write_atomically

CORPUS, MANIFEST = "corpus.jsonl", "MANIFEST.json"
_FORMAT = 1  # goes up whenever the same request would give other bytes
_TEST_SHARE = 4  # one subject of so many is asked about in the test questions only


@dataclass(frozen=True, slots=True)
class GeneratedData:
    """``status`` tells whether the files were written or were there already; the counts are of rows."""

    folder: Path
    status: Literal["written", "reused"]
    passages: int
    train: Mapping[str, int]
    test: Mapping[str, int]


def generate(
    out: Path,
    *,
    seed: int = 0,
    train: int = 480,
    test: int = 60,
    persons: int = 240,
    cities: int = 60,
    countries: int = 24,
    books: int = 120,
) -> GeneratedData:
    """Write ``corpus.jsonl``, ``train.jsonl``, ``test.jsonl`` and a manifest; the same arguments give the same bytes.

    Training and test questions are about different subjects of one world. Both take the kinds of questions in turn.

    Raises:
        ValueError: more entities than names or more questions than subjects; files of another request are there already.
    """
    request = {
        "format": _FORMAT, "seed": seed, "train": train, "test": test,
        "persons": persons, "cities": cities, "countries": countries, "books": books,
    }  # fmt: skip
    if found := _reusable(out, request):
        return found
    world = make_world(seed, persons=persons, cities=cities, countries=countries, books=books)
    titles = [title for title, _ in world.passages()]
    rows = {title: str(number) for number, title in enumerate(titles)}
    questions = {
        "train": _questions(world, seed, train, held_out=False),
        "test": _questions(world, seed, test, held_out=True),
    }
    files = {CORPUS: _lines({"id": rows[title], "contents": f'"{title}"\n{text}'} for title, text in world.passages())}
    for split, asked in questions.items():
        files[f"{split}.jsonl"] = _lines(_question_row(split, n, question, rows) for n, question in enumerate(asked))
    counts = {split: dict(Counter(question.kind.source for question in asked)) for split, asked in questions.items()}
    manifest = {
        "request": request,
        "passages": len(rows),
        "questions": counts,
        "sha256": {name: hashlib.sha256(content.encode()).hexdigest() for name, content in files.items()},
    }
    for name, content in files.items():
        write_atomically(out / name, content)
    write_atomically(out / MANIFEST, json.dumps(manifest, indent=2) + "\n")  # last: it says that the rest is complete
    return GeneratedData(out, "written", len(rows), counts["train"], counts["test"])


def _reusable(out: Path, request: Mapping[str, int]) -> GeneratedData | None:
    """What lies in ``out``, if it is what was asked for. Raises ValueError for anything else."""
    if not (out / MANIFEST).is_file():
        return None
    try:
        manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        same = manifest["request"] == request
        whole = all(
            hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
            for name, digest in manifest["sha256"].items()
        )
        counts = manifest["questions"]
        found = GeneratedData(out, "reused", manifest["passages"], counts["train"], counts["test"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{out} holds damaged generated data ({error}): remove it or choose another folder") from error
    if not same or not whole:
        what = "changed" if same else "other"
        raise ValueError(f"{out} holds {what} generated data: remove it or choose another folder")
    return found


def _questions(world: World, seed: int, count: int, *, held_out: bool) -> list[Question]:
    """``count`` different questions, the kinds in turn; about every fourth subject where ``held_out``, else the others."""
    rng = random.Random(f"questions/{seed}/{held_out}")
    waiting: list[list[Question]] = []
    for kind in QUESTION_KINDS:
        subjects = world.entities[kind.subject_kind]
        chosen = [name for n, name in enumerate(subjects) if (n % _TEST_SHARE == 0) == held_out]
        waiting.append([world.ask(kind, name) for name in rng.sample(chosen, len(chosen))])
    available = sum(map(len, waiting))
    if count > available:
        raise ValueError(
            f"{count} questions wanted, {available} can be asked of these subjects: ask for fewer, or more entities"
        )
    asked: list[Question] = []
    while len(asked) < count:
        asked += [group.pop() for group in waiting if group]
    return asked[:count]


def _question_row(split: str, number: int, question: Question, rows: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": f"{split}_{number}",
        "question": question.text,
        "golden_answers": [question.answer],
        "data_source": question.kind.source,
        "metadata": {
            "relations": list(question.kind.relations),
            "gold_passage_ids": [rows[title] for title in question.passages],
        },
    }


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
