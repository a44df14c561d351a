"""From the published Search-R1 parquets to the processed ones that the search environment reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from rsipo.problems import UserError
from rsipo.searchdata.formats import (
    PUBLISHED_TEST_ROWS,
    PUBLISHED_TRAIN_ROWS,
    QARow,
    read_raw,
    write_processed,
)
from rsipo.searchdata.text import ask

REPOSITORY = "PeterJinGo/nq_hotpotqa_train"
SPLITS = ("train", "test")
_PUBLISHED = {"train": PUBLISHED_TRAIN_ROWS, "test": PUBLISHED_TEST_ROWS}


def process_split(raw: Path, output: Path, split: str, *, published: bool) -> Counter[str]:
    """Convert one file, row by row and in its order, and return its rows per source.

    Args:
        raw, output: the two parquets; the second is written complete or not at all.
        split: ``train`` or ``test``.
        published: whether there must be exactly the published rows per source.

    Raises:
        UserError: the raw file is missing, damaged, empty or not the published one, or a row is not as it should be.
    """
    counts: Counter[str] = Counter()

    def rows() -> Iterator[QARow]:
        for row in read_raw(raw):
            counts[row.source] += 1
            yield replace(row, question=ask(row.question))
        if not counts:
            raise UserError(f"{raw} has no rows; download it again")
        if published:
            check_published_counts(split, counts)

    write_processed(output, rows(), split)
    return counts


def check_published_counts(split: str, counts: Mapping[str, int]) -> None:
    """Compare rows per source with the published ones, without which no number is comparable.

    Raises:
        UserError: they differ.
    """
    published = _PUBLISHED[split]
    if dict(counts) != published:
        differences = ", ".join(
            f"{name} {counts.get(name, 0):,} for {published.get(name, 0):,}"
            for name in sorted({*counts, *published})
            if counts.get(name, 0) != published.get(name, 0)
        )
        raise UserError(
            f"the {split} file has other rows than the published {sum(published.values()):,} ({differences}); "
            "download it again, or give --allow_other_counts"
        )
