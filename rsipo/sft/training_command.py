"""The words of ``rsipo sft train``. Heavy imports happen inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console


def train(
    context: typer.Context,
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Holds train.parquet and val.parquet.")],
    export: Annotated[Path, typer.Option("--export", metavar="DIR", help="Where the model goes; must not exist.")],
    arguments: Annotated[
        Optional[list[str]],
        typer.Argument(
            metavar="[ENV [MODEL]] [KEY=VALUE]...",
            help="Benchmark, base model (folder, or name under MODELS_ROOT; default: the embedded policy), overrides "
            "(sft.epochs=3 and the like, and those of rsipo train).",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint, if there is one.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, say what would be done, stop.")] = False,
) -> None:
    """Fine-tune the base model on SFT data and export it."""
    from rsipo.launch import parse_request
    from rsipo.sft.training import prepare, run
    from rsipo.sft.training_settings import compose_training, run_name

    request = parse_request([*(arguments or []), *context.args])
    target = export.expanduser().absolute()
    overrides = [*(["run.resume=auto"] if resume else []), *request.overrides]
    setup = compose_training(request.environment, request.model, run_name(target), overrides)
    job = prepare(setup, data.expanduser(), target)
    if dry_run:
        console = Console(soft_wrap=True, highlight=False)
        for line in job.describe():
            console.print(line, markup=False)
        console.print("Nothing was started.")
        return
    run(job)
