"""The command behind ``scripts/data/trex_popqa.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from rsipo.problems import UserError
from rsipo.run_files import locked
from rsipo.searchdata.manifest import already_built, make_request, write_manifest
from rsipo.searchdata.popqa import TEMPLATES
from rsipo.searchdata.progress import meter
from rsipo.searchdata.script import Force, Out, make_console
from rsipo.searchdata.trex import OUTPUT, build_trex_popqa

_SHOWN_RELATIONS = 15


def trex_popqa(
    trex: Annotated[Path, typer.Option("--trex", help="FlashRAG's trex/train.jsonl.")],
    out: Out,
    disambiguation: Annotated[
        Literal["keep", "strip"],
        typer.Option(help="Titles such as 'Up (2009 film)': as they are, or 'Up', merged with every other 'Up'."),
    ] = "keep",
    force: Force = False,
) -> None:
    """Make PopQA-like questions of T-REx facts: PopQA's sixteen relations, its wording, all objects as answers."""
    console = make_console()
    if not trex.is_file():
        raise UserError(f"{trex} does not exist; download trex/train.jsonl from RUC-NLPIR/FlashRAG_datasets")
    console.print(f"trex-popqa: disambiguation {disambiguation}", markup=False)
    with console.status("hashing the input"):
        request = make_request("trex-popqa", {"disambiguation": disambiguation}, {"trex": trex})
    with locked(out, "name another --out"):
        if already_built(out, request, force=force):
            console.print(f"{out} holds exactly these questions already; nothing to do", markup=False)
            return
        with meter(console, "reading T-REx", trex.stat().st_size, "bytes") as progress:
            report = build_trex_popqa(
                trex, out / OUTPUT, keep_disambiguation=disambiguation == "keep", advance=progress.advance
            )
        questions = sum(report.questions.values())
        results = {
            "rows": report.rows,
            "questions_per_relation": dict(report.questions),
            "questions_with_several_answers": report.several_answers,
            "rows_merged": report.merged_rows,
            "rows_left_out": dict(report.left_out),
            "rows_of_other_relations": dict(report.other_relations),
        }
        write_manifest(out, request, results, {OUTPUT: questions})

    table = Table("relation", "questions")
    for relation in TEMPLATES:
        table.add_row(relation, f"{report.questions[relation]:,}")
    console.print(table)
    others = sum(report.other_relations.values())
    common = ", ".join(f"{name} {count:,}" for name, count in report.other_relations.most_common(_SHOWN_RELATIONS))
    console.print(
        f"{report.rows:,} rows read; {others:,} of {len(report.other_relations)} other relations ({common})",
        markup=False,
    )
    left_out = ", ".join(f"{reason} {count:,}" for reason, count in sorted(report.left_out.items())) or "none"
    console.print(
        f"rows left out: {left_out}; rows merged into an earlier question: {report.merged_rows:,}", markup=False
    )
    console.print(
        f"{out / OUTPUT}: {questions:,} questions, {report.several_answers:,} with several answers", markup=False
    )
