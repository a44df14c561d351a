"""The stages of ``rsipo sft`` as commands: their words, what they refuse, and what they say at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from rsipo.configuration import compose_run
from rsipo.embedded_runs import EMBEDDED_RUNS
from rsipo.launch import parse_request
from rsipo.problems import UserError
from rsipo.run_files import locked
from rsipo.run_settings import RunSettings
from rsipo.sft.annotate import annotate
from rsipo.sft.build import build
from rsipo.sft.endpoint import Endpoint
from rsipo.sft.layout import SftFiles
from rsipo.sft.setup import open_setup
from rsipo.sft.tasks import choose_tasks, training_tasks, write_tasks
from rsipo.sft.trajectories import collect
from rsipo.specs import make_spec
from rsipo.stage_progress import StageProgress
from rsipo.tasks import by_type

_ELSEWHERE = "name another folder with --out"


def sample_stage(words: Sequence[str], out: Path, *, count: int, seed: int, embedded: bool) -> None:
    """Sample the tasks of a benchmark.

    Raises:
        UserError: too few tasks, no data, or another sample in the folder.
    """
    request = parse_request(words)
    if request.model is not None:
        raise UserError(f"'{request.model}': the tasks do not depend on a model; the form is [ENV] [KEY=VALUE ...]")
    name = request.environment
    recipe = EMBEDDED_RUNS[name].recipe if embedded else name
    # No policy is loaded: its path and the run's name are only asked for by the configuration.
    base = [f"env={name}", f"recipe={recipe}", "policy.path=none", "run.name=sft"]
    settings = RunSettings.from_config(compose_run([*base, *request.overrides]))
    if embedded and not any(text.startswith("env.data_root=") for text in request.overrides):
        EMBEDDED_RUNS[name].make_data(Path(settings.env.data_root))
    tasks = training_tasks(make_spec(settings.env))
    chosen = choose_tasks(tasks, name, count, seed)
    files = SftFiles(out)
    with locked(out, _ELSEWHERE):
        write_tasks(files, chosen, name, seed=seed, available=len(tasks))
    counts = ", ".join(f"{kind} {number}" for kind, number in by_type(chosen).items())
    _say(f"{len(chosen)} of {len(tasks)} training tasks in {files.tasks}: {counts}")


def collect_stage(words: Sequence[str], out: Path, *, rollouts: int, seed: int, resume: bool, allow_lost: bool) -> None:
    """Play the sampled tasks.

    Raises:
        UserError: everything that the user can put right.
    """
    request, files = parse_request(words), SftFiles(out)
    _need(files.tasks, f"sample tasks first: rsipo sft sample {request.environment} --out {out}")
    _refuse_used(files.rollouts, resume)
    with (
        locked(out, _ELSEWHERE),
        open_setup(request.environment, request.model, request.overrides, rollouts=rollouts, seed=seed) as setup,
    ):
        count = collect(setup, files, allow_lost=allow_lost)
    _say(f"{count:,} trajectories in {files.trajectories}")


def annotate_stage(words: Sequence[str], out: Path, *, offline: bool, resume: bool, allow_missing: bool) -> None:
    """Have the trajectories analysed.

    Raises:
        UserError: everything that the user can put right.
    """
    request, files = parse_request(words), SftFiles(out)
    _need(files.trajectories, f"collect trajectories first: rsipo sft collect {request.environment} … --out {out}")
    for path in (files.annotations, files.responses):
        _refuse_used(path, resume)
    endpoint = None if offline else Endpoint.from_environment()
    with (
        locked(out, _ELSEWHERE),
        open_setup(request.environment, request.model, request.overrides) as setup,
        StageProgress(transient=True) as progress,
    ):
        done = annotate(setup, files, endpoint, allow_missing=allow_missing, progress=progress)
    missing = f", {done.missing} trajectories without an answer" if done.missing else ""
    _say(f"{done.written:,} annotations in {files.annotations}, {done.written - done.valid} unusable{missing}")


def build_stage(directory: Path, *, validation: float, seed: int) -> None:
    """Make the training data.

    Raises:
        UserError: a stage before is missing.
    """
    if not directory.is_dir():
        raise UserError(f"no folder {directory}; make the data first (scripts/sft/*/prepare_data.sh)")
    with locked(directory, "wait for it"):
        metrics = build(SftFiles(directory), share=validation, seed=seed)
    dropped = ", ".join(f"{count} {reason}" for reason, count in metrics["dropped"].items()) or "none"
    parts = metrics["split"]
    _say(
        f"{metrics['records']:,} samples in {directory}: {parts['train']['records']:,} train, "
        f"{parts['validation']['records']:,} validation; annotations dropped: {dropped}"
    )


def _need(path: Path, remedy: str) -> None:
    if not path.is_file():
        raise UserError(f"{path} is missing; {remedy}")


def _refuse_used(path: Path, resume: bool) -> None:
    if path.exists() and not resume:
        raise UserError(f"{path} is there already: go on with --resume (RESUME=true), or {_ELSEWHERE}")


def _say(text: str) -> None:
    Console(soft_wrap=True, highlight=False).print(text, markup=False)
