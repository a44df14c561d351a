"""The command behind ``scripts/sft/alfworld/sample_tasks.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from rsipo.sft.stages import sample_stage


def sample_alfworld(
    output_dir: Annotated[Path, typer.Option("--output-dir", help="Folder to write into.")],
    count: Annotated[int, typer.Option("--count", min=1, help="Tasks.")] = 500,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    data_root: Annotated[
        Optional[Path], typer.Option("--data-root", help="Folder with json_2.1.1/; default: ALFWORLD_DATA.")
    ] = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="From the games generated for the embedded policy.")
    ] = False,
) -> None:
    """Sample training games of ALFWorld, as many of each task type, into sampled_tasks.jsonl.gz."""
    where = [] if data_root is None else [f"env.data_root='{data_root.absolute()}'"]
    sample_stage(["alfworld", *where], output_dir, count=count, seed=seed, embedded=embedded)
