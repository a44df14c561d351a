"""The command line: ``rsipo train``, ``rsipo games …``, ``rsipo audit …``, ``rsipo warm-start``. Heavy imports happen inside."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer
from dotenv import load_dotenv

from rsipo.problems import UserError

app = typer.Typer(
    name="rsipo",
    no_args_is_help=True,
    add_completion=False,
    help="Train an LLM agent and the skills it writes, together.",
)
games_app = typer.Typer(no_args_is_help=True, help="Generate and check ALFWorld-format games.")
audit_app = typer.Typer(no_args_is_help=True, help="Recompute the records of the execution check.")
app.add_typer(games_app, name="games")
app.add_typer(audit_app, name="audit")

_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": False}


def folder(text: str) -> Path:
    """A folder named on the command line; an empty text would silently mean the working directory."""
    if not text.strip():
        raise typer.BadParameter("give a folder, not an empty text")
    return Path(text)


@app.command(context_settings=_OVERRIDES)
def train(
    context: typer.Context,
    arguments: Annotated[
        Optional[list[str]],
        typer.Argument(
            metavar="[ENV MODEL] [KEY=VALUE]...", help="Benchmark, model folder under MODELS_ROOT, overrides."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print configuration, placement, sizes, memory; start nothing.")
    ] = False,
) -> None:
    """Train. With no argument: the embedded run on generated games, made for two CPU cores."""
    from rsipo.launch import train_command

    raise typer.Exit(train_command([*(arguments or []), *context.args], dry_run=dry_run))


@games_app.command("generate")
def games_generate(
    out: Annotated[
        Path,
        typer.Option(parser=folder, metavar="DIR", help="Folder to write into (json_2.1.1/<split>/… is made inside)."),
    ],
    split: Annotated[str, typer.Option(help="train, valid_seen or valid_unseen.")] = "train",
    count: Annotated[int, typer.Option(min=1, help="How many games; the six task types take turns.")] = 60,
    size: Annotated[str, typer.Option(help="micro, tiny, small or real.")] = "tiny",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    task: Annotated[Optional[str], typer.Option(help="Only this task type.")] = None,
    knob: Annotated[
        Optional[list[str]], typer.Option("--set", metavar="KNOB=VALUE", help="Difficulty, e.g. hide=1.0.")
    ] = None,
) -> None:
    """Write games of all six task types; the same seed gives the same bytes."""
    from rsipo.games import generate_command

    generate_command(out, split=split, count=count, size=size, seed=seed, task=task, knobs=knob or [])


@games_app.command("check")
def games_check(
    directory: Annotated[Path, typer.Argument(help="A folder of games, generated or real (ALFWORLD_DATA).")],
    play: Annotated[bool, typer.Option(help="Also play every walkthrough in the engine.")] = True,
) -> None:
    """Say which games are bad, and why. Exit status 1 if any is."""
    from rsipo.games import check_command

    raise typer.Exit(check_command(directory, play=play))


@audit_app.command("verify")
def audit_verify(run: Annotated[Path, typer.Argument(help="A run folder, or its rsipo-audit folder.")]) -> None:
    """Recompute every number of the audit from the raw outcomes. Exit status 1 on any difference."""
    from rsipo.audit.command import verify_command

    raise typer.Exit(verify_command(run))


@app.command("warm-start")
def warm_start(
    out: Annotated[Path, typer.Option(parser=folder, metavar="DIR", help="Folder for the model.")],
    seed: Annotated[int, typer.Option(min=0)] = 0,
    million_tokens: Annotated[float, typer.Option(help="Training tokens, in millions.")] = 10.0,
    threads: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Make the embedded tiny policy from scratch: scripted demonstrations, then supervised fine-tuning."""
    from rsipo.embedded.command import warm_start_command

    warm_start_command(out, seed=seed, million_tokens=million_tokens, threads=threads)


def read_environment(file: Path) -> None:
    """Take variables from ``file`` that are not set, drop our empty ones, and expand ``~`` in our folders.

    Raises:
        UserError: the file is not text.
    """
    try:
        load_dotenv(file)  # the environment wins over the file
    except ValueError as error:  # not UTF-8, a null byte
        raise UserError(f"{file.absolute()} is not plain text ({error}); correct or remove it") from error
    for name in ("RSIPO_WORK", "MODELS_ROOT", "ALFWORLD_DATA", "RSIPO_RESUME_MODE"):
        value = os.environ.get(name, "").strip()
        if not value:
            os.environ.pop(name, None)
        elif "${" in value:
            raise UserError(f"{name}={value}: it holds '${{', which is not expanded here; write the folder out")
        elif name != "RSIPO_RESUME_MODE":
            os.environ[name] = str(Path(value).expanduser().absolute())


def main() -> None:
    """Entry point: user errors and Ctrl-C are one line, not a traceback."""
    try:
        read_environment(Path(".env"))
        app()
    except UserError as error:
        print(f"rsipo: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:
        if end.code in (130, 15):  # so typer answers Ctrl-C, and Ray SIGTERM while it starts, without a word
            print("rsipo: interrupted", file=sys.stderr)
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a folder that cannot be written, a full disk
        print(f"rsipo: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
