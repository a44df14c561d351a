"""A training set: from the sources to the RL rows and the SFT tasks, with everything that was decided on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from rsipo.problems import UserError
from rsipo.searchdata.dedup import TestQuestions
from rsipo.searchdata.embeddings import QuestionEncoder, closest, encode_all
from rsipo.searchdata.formats import QARow
from rsipo.searchdata.mix import Mix
from rsipo.searchdata.selection import Scan, rank, scan
from rsipo.searchdata.sources import SourceFiles

Overlap = Literal["disjoint", "within"]
Relations = Literal["natural", "equal"]
_EXAMINED_AT_LEAST, _EXAMINED_AT_MOST = 64, 1024  # rows handed to the encoder at once
_SPARE_ROWS = 1000  # with an encoder: candidates kept beyond twice the rows asked for, to stand in for those left out
_SHOWN_PAIRS = 50


@dataclass(frozen=True, slots=True)
class Choices:
    """What the paper leaves open.

    Attributes:
        seed: of every random choice.
        rl_rows: rows for reinforcement learning; None: all there are.
        sft_rows: tasks for supervised fine-tuning.
        rl_mix, sft_mix: rows per source.
        overlap: SFT tasks are kept out of the RL rows (``disjoint``) or are some of them (``within``).
        popqa_relations: PopQA-like rows as often as T-REx has their relation (``natural``), or relation by relation in turn
            for as long as each lasts (``equal``).
        threshold: a row whose cosine with any test question is at least this is left out; None without an encoder.
    """

    seed: int
    rl_rows: int | None
    sft_rows: int
    rl_mix: Mix
    sft_mix: Mix
    overlap: Overlap
    popqa_relations: Relations
    threshold: float | None

    def as_record(self) -> dict[str, Any]:
        """For the manifest and the terminal."""
        return {
            "seed": self.seed,
            "rl_rows": "all" if self.rl_rows is None else self.rl_rows,
            "sft_rows": self.sft_rows,
            "rl_mix": None if self.rl_rows is None else str(self.rl_mix),
            "sft_mix": str(self.sft_mix),
            "sft_overlap": self.overlap,
            "popqa_relations": self.popqa_relations,
            "similarity_threshold": self.threshold,
        }


@dataclass(slots=True)
class TrainSet:
    """What was built.

    Attributes:
        rl, sft: the rows of ``train.parquet`` and ``sft_tasks.parquet``, in file order.
        counts: per source: ``read``, the reasons of :mod:`rsipo.searchdata.dedup`, ``available``, ``examined`` and
            ``too_similar`` (with an encoder), ``rl``, ``sft``, ``both``.
        too_similar: every row left out by similarity, with the test question it is close to.
        similarity: percentiles of the largest cosine over the examined rows; empty without an encoder.
        closest_kept: the closest pairs among the rows that were kept.
    """

    rl: list[QARow]
    sft: list[QARow]
    counts: dict[str, Counter[str]]
    too_similar: list[dict[str, Any]] = field(default_factory=list)
    similarity: dict[str, float] = field(default_factory=dict)
    closest_kept: list[dict[str, Any]] = field(default_factory=list)


class SimilarityFilter:
    """Leaves out rows that are close to a test question, and remembers how close every examined row was."""

    def __init__(self, encoder: QuestionEncoder, test: TestQuestions, embeddings: np.ndarray, threshold: float) -> None:
        self._encoder = encoder
        self._test = test
        self._embeddings = embeddings
        self._threshold = threshold
        self._cosines: list[np.ndarray] = []
        self._pairs: list[dict[str, Any]] = []
        self.too_similar: list[dict[str, Any]] = []

    def keep(self, rows: list[QARow]) -> list[QARow]:
        """The rows that are not too close."""
        cosines, where = closest(encode_all(self._encoder, [row.question for row in rows]), self._embeddings)
        self._cosines.append(cosines)
        kept = []
        for row, cosine, index in zip(rows, cosines.tolist(), where.tolist(), strict=True):
            pair = {
                "source": row.source,
                "question": row.question,
                "test_question": self._test.questions[index],
                "cosine": round(cosine, 4),
            }
            if cosine >= self._threshold:
                self.too_similar.append(pair)
            else:
                kept.append(row)
                self._pairs.append(pair)
        self._pairs = sorted(self._pairs, key=lambda pair: (-pair["cosine"], pair["question"]))[:_SHOWN_PAIRS]
        return kept

    @property
    def closest_kept(self) -> list[dict[str, Any]]:
        """The closest pairs below the threshold, closest first."""
        return self._pairs

    def percentiles(self) -> dict[str, float]:
        """Of the largest cosine with a test question, over all rows examined."""
        values = np.concatenate(self._cosines) if self._cosines else np.zeros(0, np.float32)
        points = (0, 50, 90, 99, 99.9, 100)
        return {f"p{point:g}": round(float(np.percentile(values, point)), 4) for point in points} if len(values) else {}


def build_train_set(
    files: SourceFiles,
    test: TestQuestions,
    choices: Choices,
    *,
    similarity: SimilarityFilter | None = None,
    advance: Callable[[], None] = lambda: None,
    examined: Callable[[int], None] = lambda _: None,
) -> TrainSet:
    """Select the rows of a training set.

    Every source is put in a seeded order and read once; of that order the SFT tasks come first and the RL rows next
    (``disjoint``) or from the same beginning (``within``). Memory holds the candidates, not the sources.

    Args:
        files: the inputs.
        test: the questions to stay away from.
        choices: everything the caller decides.
        similarity: the filter by embedding, None to do without.
        advance: called for every row read.
        examined: told how many rows the encoder has seen.

    Raises:
        UserError: an input is missing or damaged, or a source has fewer rows than are asked of it.
    """
    capacity = None
    if choices.rl_rows is not None:  # a source's share is at most the whole
        asked = choices.rl_rows + choices.sft_rows
        capacity = asked if similarity is None else 2 * asked + _SPARE_ROWS
    relations_equal = choices.popqa_relations == "equal"
    found = scan(files, test, choices.seed, capacity, relations_equal=relations_equal, advance=advance)
    available = {name: found.counts[name]["available"] for name in files.names}
    sft_counts = (
        choices.sft_mix.shares(choices.sft_rows, available) if choices.sft_rows else dict.fromkeys(available, 0)
    )
    rl_counts = None if choices.rl_rows is None else choices.rl_mix.shares(choices.rl_rows, available)
    needed: dict[str, int | None] = {}
    for name in files.names:  # before the encoder is asked anything
        needed[name] = None if rl_counts is None else _needed(name, rl_counts[name], sft_counts[name], choices.overlap)
        _check_enough(name, available[name], needed[name] or sft_counts[name])
    rl: list[QARow] = []
    sft: list[QARow] = []
    for name in files.names:
        tasks = sft_counts[name]
        rows = _take(name, found, needed[name], similarity, examined)
        _check_enough(name, len(rows), needed[name] or tasks, complete=found.candidates[name].complete)
        sft += rows[:tasks]
        rl += rows[tasks:] if choices.overlap == "disjoint" else rows
    result = TrainSet(_shuffled(rl, choices.seed, "rl"), _shuffled(sft, choices.seed, "sft"), dict(found.counts))
    _count(result, similarity)
    return result


def _take(
    name: str,
    found: Scan,
    needed: int | None,
    similarity: SimilarityFilter | None,
    examined: Callable[[int], None],
) -> list[QARow]:
    """The first ``needed`` rows of a source's order that pass the filter by similarity."""
    rows = found.candidates[name].in_order()
    if similarity is None:
        return rows[:needed]
    kept: list[QARow] = []
    start = 0
    while start < len(rows) and (needed is None or len(kept) < needed):
        missing = len(rows) if needed is None else needed - len(kept)
        part = rows[start : start + max(_EXAMINED_AT_LEAST, min(missing, _EXAMINED_AT_MOST))]
        start += len(part)
        passed = similarity.keep(part)
        found.counts[name]["examined"] += len(part)
        found.counts[name]["too_similar"] += len(part) - len(passed)
        kept += passed
        examined(len(part))
    return kept[:needed]


def _needed(name: str, rl: int, sft: int, overlap: Overlap) -> int:
    if overlap == "disjoint":
        return rl + sft
    if sft > rl:
        raise UserError(
            f"{name}: {sft} SFT tasks cannot be within {rl} RL rows; "
            "choose --sft-overlap disjoint, fewer --sft-rows, or other mixes"
        )
    return rl


def _check_enough(name: str, have: int, needed: int, *, complete: bool = True) -> None:
    if have >= needed:
        return
    if not complete:
        raise UserError(
            f"{name}: more than half of the rows are too similar to test questions; raise --similarity-threshold"
        )
    raise UserError(
        f"{name} has {have:,} rows left after de-duplication, {needed:,} are asked for; "
        "lower --rl-rows or --sft-rows, or give it less in --rl-mix or --sft-mix"
    )


def _shuffled(rows: list[QARow], seed: int, purpose: str) -> list[QARow]:
    return sorted(rows, key=lambda row: (rank(seed, purpose, row), row.question))


def _count(result: TrainSet, similarity: SimilarityFilter | None) -> None:
    questions = {row.question for row in result.rl}
    for row in result.rl:
        result.counts[row.source]["rl"] += 1
    for row in result.sft:
        result.counts[row.source]["sft"] += 1
        result.counts[row.source]["both"] += row.question in questions
    if similarity is not None:
        result.too_similar = similarity.too_similar
        result.similarity = similarity.percentiles()
        result.closest_kept = similarity.closest_kept
