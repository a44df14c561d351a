"""What is in a file of questions: a report for people and for programs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from agent_system.environments.search.answers import normalise
from rsipo.searchdata.dedup import TestQuestions
from rsipo.searchdata.formats import QARow
from rsipo.searchdata.text import normalise_question

QUALITY_JSON, QUALITY_TEXT = "quality.json", "quality.txt"
PERCENTILES = (1, 50, 90, 99, 100)


@dataclass(slots=True)
class SourceQuality:
    """Findings about the rows of one source (or of all).

    Attributes:
        rows: in all.
        repeated: rows whose normalised question another row before had.
        empty_answers: rows with a golden answer that normalises to nothing: an empty response would match it.
        unanswerable: rows all of whose answers do so, or that have none.
        answer_in_question: rows whose question contains a golden answer as whole words.
        csv_quotes: questions with doubled or enclosing double quotes, a residue of CSV.
        test_questions, test_facts: rows that repeat a test question, or ask for its (subject, relation).
        question_words, answer_words, answers: lengths, one number per row; of the answers the longest.
    """

    rows: int = 0
    repeated: int = 0
    empty_answers: int = 0
    unanswerable: int = 0
    answer_in_question: int = 0
    csv_quotes: int = 0
    test_questions: int = 0
    test_facts: int = 0
    question_words: list[int] = field(default_factory=list)
    answer_words: list[int] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)

    def add(self, row: QARow, *, repeated: bool, overlap: str | None) -> None:
        """Take one row into account."""
        answers = [normalise(answer) for answer in row.answers]
        words = f" {normalise(row.question)} "
        self.rows += 1
        self.repeated += repeated
        self.empty_answers += "" in answers
        self.unanswerable += not any(answers)
        self.answer_in_question += any(answer and f" {answer} " in words for answer in answers)
        self.csv_quotes += '""' in row.question or (row.question.startswith('"') and row.question.endswith('"?'))
        self.test_questions += overlap == "test_question"
        self.test_facts += overlap == "test_fact"
        self.question_words.append(len(row.question.split()))
        self.answer_words.append(max((len(answer.split()) for answer in row.answers), default=0))
        self.answers.append(len(row.answers))

    def as_record(self) -> dict[str, Any]:
        """Counts, and percentiles of the lengths."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        lengths = {name: percentiles(getattr(self, name)) for name in _LENGTHS}
        return {**counts, **lengths}


_COUNTS = {
    "rows": "rows",
    "repeated": "repeated",
    "empty_answers": "with an empty answer",
    "unanswerable": "without an answer",
    "answer_in_question": "with an answer in the question",
    "csv_quotes": "with CSV quotes",
    "test_questions": "test questions",
    "test_facts": "test facts",
}
_LENGTHS = ("question_words", "answer_words", "answers")


def quality_report(rows: Iterable[QARow], test: TestQuestions | None) -> dict[str, Any]:
    """Findings per source and over ``all``.

    Args:
        rows: read once.
        test: to look for overlap with, None for the test file itself.
    """
    found: defaultdict[str, SourceQuality] = defaultdict(SourceQuality, {"all": SourceQuality()})
    seen: Counter[str] = Counter()
    for row in rows:
        key = normalise_question(row.question)
        seen[key] += 1
        overlap = None if test is None else test.overlap(row)
        for name in (row.source, "all"):
            found[name].add(row, repeated=seen[key] > 1, overlap=overlap)
    return {name: quality.as_record() for name, quality in sorted(found.items(), key=lambda item: item[0] == "all")}


def quality_line(report: dict[str, Any]) -> str:
    """The findings over all sources that are not zero, in words."""
    findings = [
        f"{report['all'][name]:,} {title}" for name, title in _COUNTS.items() if name != "rows" and report["all"][name]
    ]
    return ", ".join(findings) or "nothing found"


def quality_text(reports: dict[str, dict[str, Any]]) -> str:
    """Reports by file as plain text: a table each, with a line per source."""
    console = Console(width=220, no_color=True, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        for file, report in reports.items():
            console.print(_table(file, report))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _table(title: str, report: dict[str, Any]) -> Table:
    table = Table(
        "source", *_COUNTS.values(), *(name.replace("_", " ") for name in _LENGTHS), title=title, title_justify="left"
    )
    for name, record in report.items():
        counts = [f"{record[key]:,}" for key in _COUNTS]
        lengths = [" / ".join(str(value) for value in record[key].values()) for key in _LENGTHS]
        table.add_row(name, *counts, *lengths)
    table.caption = "lengths: percentiles " + " / ".join(map(str, PERCENTILES))
    return table


def percentiles(values: list[int]) -> dict[str, int]:
    """``p1`` to ``p100`` (the largest) as values that occur; empty without values."""
    if not values:
        return {}
    found = np.percentile(values, PERCENTILES, method="nearest")
    return {f"p{point}": int(value) for point, value in zip(PERCENTILES, found, strict=True)}
