"""The command behind ``scripts/data/search_train_*.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Optional

import typer

from rsipo.problems import UserError
from rsipo.searchdata.build import Choices, Overlap, Relations
from rsipo.searchdata.mix import Mix
from rsipo.searchdata.script import Force, Out, make_console
from rsipo.searchdata.sources import SourceFiles
from rsipo.searchdata.train_set import PROFILES, build_command, threshold_of

#: 150 steps of 128 tasks: one pass of the paper's run (Table 2).
RL_ROWS = 150 * 128
SFT_ROWS = 500

_MIX_HELP = "Rows per source: equal, natural (as available), or weights such as nq=2,hotpotqa=1."
DataDir = Annotated[Path, typer.Option("--data-dir", help="Folder with searchR1_processed_direct/ (and the cache).")]
FlashRAGDir = Annotated[Path, typer.Option("--flashrag-dir", help="Folder with <dataset>/train.jsonl of FlashRAG.")]
TrexPopQA = Annotated[Optional[Path], typer.Option("--trex-popqa", help="What scripts/data/trex_popqa.py wrote.")]
ProcessedDir = Annotated[
    Optional[Path], typer.Option("--processed-dir", help="Default: searchR1_processed_direct in --data-dir.")
]
Cache = Annotated[Optional[Path], typer.Option("--cache", help="Test embeddings; default: test_e5.npy in --data-dir.")]
EncoderOption = Annotated[
    str, typer.Option("--encoder", help="Check by embedding: a sentence-transformers folder, a hub name, or none.")
]
Threshold = Annotated[
    Optional[float],
    typer.Option(
        "--similarity-threshold", min=-1, max=1, help="Cosine with a test question from which a row is left out."
    ),
]


def train_set_script(model: str) -> Callable[..., None]:
    """The command of one base model; its defaults are the model's :class:`~rsipo.searchdata.train_set.Profile`."""
    profile = PROFILES[model]

    def command(
        data_dir: DataDir,
        flashrag_dir: FlashRAGDir,
        out: Out,
        trex_popqa: TrexPopQA = None,
        processed_dir: ProcessedDir = None,
        rl_rows: Annotated[str, typer.Option("--rl-rows", help="A number, or all.")] = str(RL_ROWS),
        sft_rows: Annotated[int, typer.Option("--sft-rows", min=0)] = SFT_ROWS,
        rl_mix: Annotated[str, typer.Option("--rl-mix", help=_MIX_HELP)] = "equal",
        sft_mix: Annotated[str, typer.Option("--sft-mix", help=_MIX_HELP)] = profile.sft_mix,
        sft_overlap: Annotated[
            Overlap, typer.Option("--sft-overlap", help="SFT tasks are kept out of the RL rows, or are some of them.")
        ] = "disjoint",
        popqa_relations: Annotated[
            Relations, typer.Option("--popqa-relations", help="Of PopQA-like rows: as T-REx has them, or in turn.")
        ] = "natural",
        encoder: EncoderOption = profile.encoder,
        similarity_threshold: Threshold = None,
        cache: Cache = None,
        seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
        force: Force = False,
    ) -> None:
        if profile.popqa and trex_popqa is None:
            raise UserError(
                f"the {model} set has PopQA-like questions: give --trex-popqa FILE (scripts/data/trex_popqa.py)"
            )
        if not profile.popqa and trex_popqa is not None:
            raise UserError(f"the {model} set has no PopQA-like questions: leave out --trex-popqa")
        processed = processed_dir or data_dir / "searchR1_processed_direct"
        files = SourceFiles(processed / "train.parquet", processed / "test.parquet", flashrag_dir, trex_popqa)
        choices = Choices(
            seed=seed,
            rl_rows=_rows(rl_rows),
            sft_rows=sft_rows,
            rl_mix=Mix.parse(rl_mix, files.names, "--rl-mix"),
            sft_mix=Mix.parse(sft_mix, files.names, "--sft-mix"),
            overlap=sft_overlap,
            popqa_relations=popqa_relations,
            threshold=threshold_of(encoder, similarity_threshold),
        )
        build_command(
            profile,
            files,
            out,
            choices,
            encoder=encoder,
            cache=cache or data_dir / "test_e5.npy",
            force=force,
            console=make_console(),
        )

    command.__doc__ = (
        f"Build the RL rows (train.parquet) and the SFT tasks (sft_tasks.parquet) for {model}, without test questions."
    )
    return command


def _rows(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--rl-rows {text!r}: write a positive number, or all")
    return int(text)
