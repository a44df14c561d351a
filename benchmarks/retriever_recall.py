"""Does an index find the gold passages? Prints per dataset: any gold passage among the first 3, all among the first 10.

python benchmarks/retriever_recall.py INDEX --gold gold_test.jsonl

A line of the gold file has ``data_source``, ``question`` and ``gold_passage_ids``; questions without any are left out.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from agent_system.retrieval.engine import open_engine

_BATCH = 64


def main(index: Path, gold: Annotated[Path, typer.Option(help="Questions with their gold passages.")]) -> None:
    """Print the table."""
    engine = open_engine(index)
    rows = [json.loads(line) for line in gold.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["gold_passage_ids"]]
    marks: defaultdict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for start in range(0, len(rows), _BATCH):
        batch = rows[start : start + _BATCH]
        for row, hits in zip(batch, engine.search([row["question"] for row in batch], 10), strict=True):
            ids = [str(json.loads(hit.document)["id"]) for hit in hits]
            wanted = set(row["gold_passage_ids"])
            marks[row["data_source"]].append((bool(wanted & set(ids[:3])), wanted <= set(ids)))
    table = Table("dataset", "questions", "any@3", "all@10")
    for dataset, found in [*marks.items(), ("all", [mark for group in marks.values() for mark in group])]:
        shares = (sum(column) / len(found) for column in zip(*found, strict=True))
        table.add_row(dataset, str(len(found)), *(f"{share:.3f}" for share in shares))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
