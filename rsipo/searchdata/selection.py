"""Which rows are taken: a seeded order of each source that depends on the questions alone, not on the order of a file."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rsipo.searchdata.dedup import ExactFilter, TestQuestions
from rsipo.searchdata.formats import QARow
from rsipo.searchdata.sources import SourceFiles
from rsipo.searchdata.text import normalise_question


def rank(seed: int, purpose: str, row: QARow) -> int:
    """A pseudo-random 128-bit number of a row; equal questions have equal ranks."""
    name = "\0".join((str(seed), purpose, row.source, normalise_question(row.question)))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "big")


class LowestRanks:
    """Keeps the ``capacity`` rows of lowest rank among all that are offered (None: all of them)."""

    def __init__(self, seed: int, capacity: int | None) -> None:
        self._seed = seed
        self._capacity = capacity
        self._heap: list[tuple[int, int, QARow]] = []
        self.offered = 0

    def offer(self, row: QARow) -> None:
        """Consider one row; all offered rows must have different questions."""
        self.offered += 1
        entry = (-rank(self._seed, "row", row), self.offered, row)
        if self._capacity is None or len(self._heap) < self._capacity:
            heapq.heappush(self._heap, entry)
        elif self._heap:
            heapq.heappushpop(self._heap, entry)

    @property
    def complete(self) -> bool:
        """Whether every offered row is still here."""
        return len(self._heap) == self.offered

    def in_order(self) -> list[QARow]:
        """The kept rows, lowest rank first."""
        return [row for _, _, row in sorted(self._heap, reverse=True)]


class Candidates:
    """The candidates of one source, in the order in which they are to be taken.

    Args:
        seed, capacity: as in :class:`LowestRanks`; the capacity holds per relation where ``by_relation``.
        by_relation: take the relations of PopQA-like rows in turn, so that rare ones are not drowned by common ones.
    """

    def __init__(self, seed: int, capacity: int | None, *, by_relation: bool) -> None:
        self._seed = seed
        self._capacity = capacity
        self._by_relation = by_relation
        self._strata: dict[str | None, LowestRanks] = {}

    def offer(self, row: QARow) -> None:
        """Consider one row."""
        stratum = row.relation if self._by_relation else None
        if stratum not in self._strata:
            self._strata[stratum] = LowestRanks(self._seed, self._capacity)
        self._strata[stratum].offer(row)

    @property
    def complete(self) -> bool:
        """Whether every offered row is still here."""
        return all(stratum.complete for stratum in self._strata.values())

    def in_order(self) -> list[QARow]:
        """The first of every stratum by rank, then the second of every one, and so on."""
        placed = [(place, row) for stratum in self._strata.values() for place, row in enumerate(stratum.in_order())]
        return [row for _, row in sorted(placed, key=lambda item: (item[0], rank(self._seed, "row", item[1])))]


@dataclass(frozen=True, slots=True)
class Scan:
    """One pass over all sources: their candidates, and what became of every row (``read``, reasons, ``available``)."""

    candidates: Mapping[str, Candidates]
    counts: Mapping[str, Counter[str]]


def scan(
    files: SourceFiles,
    test: TestQuestions,
    seed: int,
    capacity: int | None,
    *,
    relations_equal: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> Scan:
    """Read every source once and keep ``capacity`` candidates of each; ``relations_equal`` is for PopQA-like rows.

    Raises:
        UserError: an input is missing, damaged or empty.
    """
    exact = ExactFilter(test)
    candidates = {
        name: Candidates(seed, capacity, by_relation=relations_equal and name == "popqa") for name in files.names
    }
    counts: dict[str, Counter[str]] = {name: Counter() for name in files.names}
    for name in files.names:
        for row in files.rows(name):
            advance()
            counts[name]["read"] += 1
            if reason := exact.reason(row):
                counts[name][reason] += 1
            else:
                counts[name]["available"] += 1
                candidates[name].offer(row)
    return Scan(candidates, counts)
