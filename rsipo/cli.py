"""The command line, ``rsipo COMMAND``. Heavy imports happen inside the commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal, Optional

import typer
from dotenv import load_dotenv

from rsipo.problems import UserError
from rsipo.retriever.command import retriever_app
from rsipo.sft.command import sft_app

app = typer.Typer(
    name="rsipo",
    no_args_is_help=True,
    add_completion=False,
    help="Train an LLM agent and the skills it writes, together.",
)
games_app = typer.Typer(no_args_is_help=True, help="Generate and check ALFWorld-format games.")
audit_app = typer.Typer(no_args_is_help=True, help="Recompute the records of the execution check.")
search_app = typer.Typer(no_args_is_help=True, help="Generate data for search-based question answering.")
app.add_typer(games_app, name="games")
app.add_typer(search_app, name="search")
app.add_typer(audit_app, name="audit")
app.add_typer(retriever_app, name="retriever")
app.add_typer(sft_app, name="sft")

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


@app.command(context_settings=_OVERRIDES)
def evaluate(
    context: typer.Context,
    arguments: Annotated[
        Optional[list[str]],
        typer.Argument(
            metavar="[ENV MODEL [STEP]] [KEY=VALUE]...",
            help="Benchmark, model (its run is evaluated) or run folder, training step (default: the newest), overrides.",
        ),
    ] = None,
    hf: Annotated[
        bool, typer.Option("--hf", help="MODEL is a Hugging Face folder under MODELS_ROOT (also RSIPO_EVAL_HF=1).")
    ] = False,
    policy: Annotated[
        Optional[str], typer.Option(help="A scripted policy instead of a model: walkthrough or nonsense.")
    ] = None,
    tasks: Annotated[Optional[int], typer.Option(min=1, help="A subset: so many tasks of each split.")] = None,
    subset: Annotated[bool, typer.Option("--subset", help="A subset: whatever tasks are there.")] = False,
    panel: Annotated[
        Optional[Path], typer.Option(metavar="FILE", help="Play exactly the tasks of this panel.json.")
    ] = None,
    out: Annotated[
        Optional[Path], typer.Option(parser=folder, metavar="DIR", help="Folder of the results, instead of the usual.")
    ] = None,
) -> None:
    """Measure a policy: every task of the panel once per round, no skill. An interrupted evaluation goes on."""
    from rsipo.evaluation.command import Options, evaluate_command

    hf = hf or os.environ.get("RSIPO_EVAL_HF") == "1"
    options = Options(hf and policy is None, policy, tasks, subset, panel, out)
    raise typer.Exit(evaluate_command([*(arguments or []), *context.args], options))


@app.command(context_settings=_OVERRIDES)
def rollout(
    context: typer.Context,
    arguments: Annotated[
        Optional[list[str]],
        typer.Argument(
            metavar="[ENV [MODEL [STEP]]] [KEY=VALUE]...",
            help="Benchmark, model (default: the embedded policy), with --checkpoint a run and its step, overrides.",
        ),
    ] = None,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Play a run's checkpoint, not a model folder.")
    ] = False,
    policy: Annotated[
        Optional[str], typer.Option(help="A scripted policy instead of a model: walkthrough or nonsense.")
    ] = None,
    split: Annotated[str, typer.Option(help="Whose tasks.")] = "train",
    tasks: Annotated[int, typer.Option(min=1, help="How many, spread over the task types.")] = 6,
    rollouts: Annotated[int, typer.Option(min=1, help="Episodes of each task.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the first episode of each task.")] = 0,
    view: Annotated[
        Literal["live", "episodes", "none"],
        typer.Option(
            help="Each turn as it ends, one episode after the other; or all at once, each episode as it ends."
        ),
    ] = "live",
    out: Annotated[
        Optional[Path], typer.Option(parser=folder, metavar="DIR", help="Default: $RSIPO_WORK/rollouts/<time>.")
    ] = None,
) -> None:
    """Play a few episodes and show them turn by turn; nothing is trained. Transcripts: episodes.jsonl."""
    from rsipo.evaluation.rollout_command import RolloutOptions, rollout_command

    options = RolloutOptions(checkpoint, policy, split, tasks, rollouts, seed, view, out)
    raise typer.Exit(rollout_command([*(arguments or []), *context.args], options))


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


@search_app.command("generate")
def search_generate(
    out: Annotated[Path, typer.Option(parser=folder, metavar="DIR", help="Folder to write into.")],
    seed: Annotated[int, typer.Option(min=0)] = 0,
    train: Annotated[int, typer.Option(min=1, help="Training questions.")] = 480,
    test: Annotated[int, typer.Option(min=1, help="Test questions, about other subjects.")] = 60,
) -> None:
    """Write a corpus about an invented world, and one- and two-hop questions that only searching it can answer."""
    from rsipo.search_worlds import generate_command

    generate_command(out, seed=seed, train=train, test=test)


@audit_app.command("verify")
def audit_verify(run: Annotated[Path, typer.Argument(help="A run folder, or its rsipo-audit folder.")]) -> None:
    """Recompute every number of the audit from the raw outcomes. Exit status 1 on any difference."""
    from rsipo.audit.command import verify_command

    raise typer.Exit(verify_command(run))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; several are compared.")],
    out: Annotated[
        Optional[Path], typer.Option(help="Folder to write into. Default: `report` in the run, or here for several.")
    ] = None,
) -> None:
    """Write one HTML file about a run, or about several: training, skills, trust, every task. PNGs beside it."""
    from rsipo.report.command import report_command

    report_command(runs, out)


@app.command("warm-start")
def warm_start(
    out: Annotated[Path, typer.Option(parser=folder, metavar="DIR", help="Folder for the model.")],
    env: Annotated[str, typer.Option(metavar="[alfworld|search]", help="What the policy is for.")] = "alfworld",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    million_tokens: Annotated[
        Optional[float], typer.Option(min=0.001, help="Training tokens, in millions. Default: 10, for search 8.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Make an embedded tiny policy from scratch: scripted demonstrations, then supervised fine-tuning."""
    from rsipo.embedded.command import warm_start_command

    warm_start_command(out, env, seed=seed, million_tokens=million_tokens, threads=threads)


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or its name under $RSIPO_WORK/runs.")],
    step: Annotated[
        Optional[str], typer.Argument(metavar="[STEP]", help="A step, or latest (default).", show_default=False)
    ] = None,
    repository: Annotated[
        Optional[str], typer.Argument(metavar="[HF_REPO]", help="OWNER/NAME on the hub to upload to.")
    ] = None,
    out: Annotated[
        Optional[Path],
        typer.Option(parser=folder, metavar="DIR", help="Folder to write; default: RUN/export/<run>-step<STEP>."),
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="[bf16|fp32]", help="Precision of the weights.")] = "bf16",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    public: Annotated[bool, typer.Option("--public", help="Create the repository public, not private.")] = False,
) -> None:
    """Merge a checkpoint into a self-contained, verified Hugging Face model; upload it where HF_REPO is given."""
    from rsipo.export.command import export_command

    export_command(run, step, repository, out=out, precision=dtype, overwrite=overwrite, private=not public)


@app.command(context_settings=_OVERRIDES)
def doctor(
    context: typer.Context,
    arguments: Annotated[
        Optional[list[str]],
        typer.Argument(metavar="[ENV MODEL] [KEY=VALUE]...", help="The words you would give to rsipo train."),
    ] = None,
) -> None:
    """Look at software, machine, data, model and memory, with a remedy for what is wrong. Exit status 1 on a failure."""
    from rsipo.doctor.command import doctor_command

    raise typer.Exit(doctor_command([*(arguments or []), *context.args]))


def read_environment(file: Path) -> None:
    """Take variables from ``file`` that are not set, drop our empty ones, and expand ``~`` in our folders.

    Raises:
        UserError: the file is not text.
    """
    try:
        load_dotenv(file)  # the environment wins over the file
    except ValueError as error:  # not UTF-8, a null byte
        raise UserError(f"{file.absolute()} is not plain text ({error}); correct or remove it") from error
    for name in (
        "RSIPO_WORK",
        "MODELS_ROOT",
        "ALFWORLD_DATA",
        "SEARCH_DATA",
        "RSIPO_SEARCH_TRAIN_DATA",
        "RSIPO_RESUME_MODE",
    ):
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
        sys.exit(error.exit_status)
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
