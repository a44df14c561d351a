"""The words of ``rsipo sft …``. Heavy imports happen inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Optional

import typer
from rich.console import Console

from rsipo.problems import UserError
from rsipo.sft.training_command import train

sft_app = typer.Typer(
    no_args_is_help=True, help="Stage 1: trajectories, skills written by an external LLM, data for fine-tuning."
)

_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": False}
_Words = Annotated[
    Optional[list[str]],
    typer.Argument(
        metavar="[ENV [MODEL]] [KEY=VALUE]...",
        help="Benchmark, base model (folder, or name under MODELS_ROOT; default: the embedded policy), overrides.",
    ),
]
_Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="The data folder.")]
_Resume = Annotated[bool, typer.Option("--resume", help="Go on with what the folder holds of this stage.")]

sft_app.command("train", context_settings=_OVERRIDES)(train)


@sft_app.command("sample", context_settings=_OVERRIDES)
def sample(
    context: typer.Context,
    out: _Out,
    arguments: Annotated[
        Optional[list[str]], typer.Argument(metavar="[ENV] [KEY=VALUE]...", help="Benchmark, overrides.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Tasks.")] = 500,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="From the data generated for the embedded policy.")
    ] = False,
) -> None:
    """Sample training tasks: as many of each ALFWorld task type; search questions in the proportions of their file."""
    from rsipo.sft.stages import sample_stage

    sample_stage([*(arguments or []), *context.args], out, count=count, seed=seed, embedded=embedded)


@sft_app.command("collect", context_settings=_OVERRIDES)
def collect(
    context: typer.Context,
    out: _Out,
    arguments: _Words = None,
    rollouts: Annotated[int, typer.Option(min=1, help="Episodes per task.")] = 8,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    resume: _Resume = False,
    allow_lost: Annotated[
        bool, typer.Option("--allow-lost", help="Leave out episodes that the infrastructure lost.")
    ] = False,
) -> None:
    """Let the base model play every sampled task, on the rollout workers of training."""
    from rsipo.sft.stages import collect_stage

    words = [*(arguments or []), *context.args]
    collect_stage(words, out, rollouts=rollouts, seed=seed, resume=resume, allow_lost=allow_lost)


@sft_app.command("annotate", context_settings=_OVERRIDES)
def annotate(
    context: typer.Context,
    out: _Out,
    arguments: _Words = None,
    annotator: Annotated[
        Literal["external", "offline"],
        typer.Option(help="external: the LLM of RSIPO_ANNOTATOR_*; offline: templates, no LLM."),
    ] = "external",
    resume: _Resume = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Leave out trajectories whose request had no response.")
    ] = False,
) -> None:
    """Have a summary and a skill written for every trajectory. No response is paid for twice."""
    from rsipo.sft.stages import annotate_stage

    words = [*(arguments or []), *context.args]
    annotate_stage(words, out, offline=annotator == "offline", resume=resume, allow_missing=allow_missing)


@sft_app.command("build")
def build(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The data folder.")],
    validation: Annotated[float, typer.Option(min=0.0, max=0.9, help="Share of the tasks that validate.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Make train.parquet and val.parquet from the annotations, split by task."""
    from rsipo.sft.stages import build_stage

    build_stage(directory, validation=validation, seed=seed)


@sft_app.command("check")
def check(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A data folder, or a folder of such.")],
) -> None:
    """Say what is wrong with SFT data, made here or published. Exit status 1 if anything is."""
    from rsipo.sft.check import check as check_folders

    if not directory.is_dir():
        raise UserError(f"no folder {directory}")
    reports = check_folders(directory)
    console = Console(soft_wrap=True, highlight=False)
    for report in reports:
        rows = ", ".join(f"{name} {count:,}" for name, count in report.counts.items())
        console.print(f"{report.folder}: {report.benchmark}; {rows}; {report.hashed} hashes agree", markup=False)
        for note in report.notes:
            console.print(f"  note: {note}", markup=False)
        for problem in report.problems:
            console.print(f"  PROBLEM: {problem}", markup=False)
    found = sum(len(report.problems) for report in reports)
    console.print(f"{len(reports)} configuration(s), {found} problem(s)", markup=False)
    raise typer.Exit(1 if found else 0)
