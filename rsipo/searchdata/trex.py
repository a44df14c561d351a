"""PopQA-like questions from T-REx: one question per (subject, relation), with all its objects as answers."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_system.environments.search.answers import normalise
from agent_system.files import replacing
from rsipo.problems import UserError
from rsipo.searchdata.formats import BadRow, answers_of, question_of
from rsipo.searchdata.popqa import popqa_question, popqa_relation
from rsipo.searchdata.sources import read_jsonl
from rsipo.searchdata.text import without_disambiguation

SEPARATOR = "[SEP]"
OUTPUT = "trex_popqa_relations.jsonl"


@dataclass(slots=True)
class TrexReport:
    """What became of the rows of T-REx.

    Attributes:
        rows: read in all.
        left_out: rows that gave nothing, by reason.
        other_relations: rows of each relation that PopQA does not ask for.
        questions: questions written, per relation.
        merged_rows: rows that only added answers to an earlier question.
        several_answers: questions with more than one answer.
    """

    rows: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    other_relations: Counter[str] = field(default_factory=Counter)
    questions: Counter[str] = field(default_factory=Counter)
    merged_rows: int = 0
    several_answers: int = 0


def build_trex_popqa(
    trex: Path, output: Path, *, keep_disambiguation: bool, advance: Callable[[int], None] | None = None
) -> TrexReport:
    """Read T-REx once and write the PopQA-like questions in the order in which their subjects first appear.

    Rows are gathered in a temporary database beside the output, so memory does not grow with the file.

    Args:
        trex: FlashRAG's ``trex/train.jsonl``, questions of the form ``subject [SEP] relation``.
        output: the file to write, complete or not at all.
        keep_disambiguation: ask for ``Up (2009 film)``, not ``Up``. Without it, equally named subjects are merged.
        advance: told the bytes of every line read.

    Raises:
        UserError: a missing or damaged file, a row in another form, or no usable row at all.
    """
    report = TrexReport()
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".trex-") as folder:
        database = sqlite3.connect(Path(folder) / "facts.sqlite", isolation_level=None)
        try:
            database.execute("PRAGMA journal_mode = OFF")
            database.execute("PRAGMA synchronous = OFF")
            _gather(database, _facts(trex, report, keep_disambiguation, advance))
            if not report.rows or not database.execute("SELECT COUNT(*) FROM fact").fetchone()[0]:
                raise UserError(
                    f"{trex} has no row of a PopQA relation among its {report.rows:,}; is it FlashRAG's trex?"
                )
            with replacing(output) as temporary, temporary.open("w", encoding="utf-8") as file:
                for row in _questions(database, report):
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
        finally:
            database.close()
    return report


def _facts(
    trex: Path, report: TrexReport, keep_disambiguation: bool, advance: Callable[[int], None] | None
) -> Iterator[tuple[str, str, str]]:
    """(subject, relation, answers as JSON) of every row that can be used; the others are counted by reason."""
    for number, row in read_jsonl(trex, advance):
        report.rows += 1
        try:
            subject, separator, label = question_of(row.get("question")).partition(SEPARATOR)
            answers = answers_of(row.get("golden_answers"))
            if not separator:
                raise BadRow(
                    f"the question is not of the form 'subject {SEPARATOR} relation': {row['question'][:80]!r}"
                )
        except BadRow as error:
            raise UserError(f"{trex} line {number}: {error}") from error
        relation = popqa_relation(label)
        subject = " ".join(subject.split())
        if not keep_disambiguation:
            subject = without_disambiguation(subject)
        if relation is None:
            report.other_relations[" ".join(label.split())] += 1
            continue
        usable = [answer.strip() for answer in answers if normalise(answer)]
        kept = [answer for answer in usable if normalise(answer) != normalise(subject)]
        if not subject:
            report.left_out["no subject"] += 1
        elif not kept:
            report.left_out["answer is the subject" if usable else "no answer"] += 1
        else:
            yield subject, relation, json.dumps(kept, ensure_ascii=False)


def _gather(database: sqlite3.Connection, facts: Iterator[tuple[str, str, str]]) -> None:
    database.execute("CREATE TABLE fact (id INTEGER PRIMARY KEY, subject TEXT, relation TEXT, answers TEXT)")
    database.execute("BEGIN")
    database.executemany("INSERT INTO fact (subject, relation, answers) VALUES (?, ?, ?)", facts)
    database.execute("COMMIT")


def _questions(database: sqlite3.Connection, report: TrexReport) -> Iterator[dict[str, Any]]:
    """One question per fact, its rows merged, in order of first appearance."""
    database.execute("CREATE INDEX by_fact ON fact (subject, relation, id)")
    groups = database.execute(
        "SELECT MIN(id) AS first, subject, relation FROM fact GROUP BY subject, relation ORDER BY first"
    )
    for number, (_, subject, relation) in enumerate(groups):
        rows = database.execute(
            "SELECT answers FROM fact WHERE subject = ? AND relation = ? ORDER BY id", (subject, relation)
        ).fetchall()
        answers = list(dict.fromkeys(answer for (text,) in rows for answer in json.loads(text)))
        report.questions[relation] += 1
        report.merged_rows += len(rows) - 1
        report.several_answers += len(answers) > 1
        yield {
            "id": f"trex_popqa_{number}",
            "question": popqa_question(subject, relation),
            "golden_answers": answers,
            "metadata": {"relation": relation, "subject": subject},
        }
