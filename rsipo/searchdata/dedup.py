"""Exact checks of a training row: can it be trained on, was it there before, is it a test question?"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from agent_system.environments.search.answers import normalise
from rsipo.problems import UserError
from rsipo.searchdata.formats import QARow, read_processed
from rsipo.searchdata.popqa import fact_key, fact_of_question, popqa_relation
from rsipo.searchdata.text import normalise_question

#: Why a row is left out, in the order in which it is asked.
REASONS = ("no_answer", "repeated", "test_question", "test_fact")


@dataclass(frozen=True, slots=True)
class TestQuestions:
    """The questions that training must not see.

    Attributes:
        questions: as they stand in the file.
        normalised: their normalised forms.
        facts: the (subject, relation) of those that ask for a single PopQA fact, whichever dataset they are from.
    """

    __test__ = False  # not a class of tests

    questions: tuple[str, ...]
    normalised: frozenset[str]
    facts: frozenset[tuple[str, str]]

    @classmethod
    def read(cls, path: Path) -> TestQuestions:
        """Read a processed test parquet.

        Raises:
            UserError: it is missing, damaged or empty.
        """
        questions, facts = [], set()
        for row in read_processed(path):
            questions.append(row.question)
            facts |= _facts(row)
        if not questions:
            raise UserError(f"{path} holds no question; make it again")
        return cls(tuple(questions), frozenset(map(normalise_question, questions)), frozenset(facts))

    def overlap(self, row: QARow) -> str | None:
        """How a row overlaps with the test questions: ``test_question``, ``test_fact`` or not at all."""
        if normalise_question(row.question) in self.normalised:
            return "test_question"
        return "test_fact" if _facts(row) & self.facts else None


class ExactFilter:
    """Says of each row in turn why it is left out, if it is; remembers the questions it has seen."""

    def __init__(self, test: TestQuestions) -> None:
        self._test = test
        self._seen: set[bytes] = set()

    def reason(self, row: QARow) -> str | None:
        """One of :data:`REASONS`, None for a row to keep."""
        if not any(normalise(answer) for answer in row.answers):
            return "no_answer"
        digest = hashlib.blake2b(normalise_question(row.question).encode(), digest_size=16).digest()
        if digest in self._seen:
            return "repeated"
        self._seen.add(digest)
        return self._test.overlap(row)


def _facts(row: QARow) -> set[tuple[str, str]]:
    """The facts a row asks for: as its question says, and as its own subject and relation do."""
    found = fact_of_question(row.question)
    facts = set() if found is None else {found}
    subject, relation = row.subject, row.relation
    if row.source == "popqa" and subject is None:  # FlashRAG's own names of the fields
        subject, relation = row.metadata.get("subj"), row.metadata.get("prop")
    if isinstance(subject, str) and isinstance(relation, str) and (name := popqa_relation(relation)):
        facts.add(fact_key(subject, name))
    return facts
