"""From the words on the command line to a run: which recipe, what is wrong with it, what it would do, and go."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from rsipo.configuration import compose_run, nearest, options
from rsipo.embedded_runs import EMBEDDED_RUNS, EmbeddedRun
from rsipo.models import family, model_folder, models_root
from rsipo.plan import Plan
from rsipo.preflight import inspect
from rsipo.problems import UserError
from rsipo.run_files import RunFiles
from rsipo.run_settings import RunSettings
from rsipo.specs import BENCHMARKS


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for. ``model`` is None for the embedded run."""

    environment: str
    model: str | None
    overrides: tuple[str, ...]


def parse_request(arguments: Sequence[str]) -> Request:
    """Read ``[ENV [MODEL]] [KEY=VALUE ...]``.

    Raises:
        UserError: an unknown benchmark (with the nearest name), or too many words.
    """
    words = [argument for argument in arguments if "=" not in argument and not argument.startswith("~")]
    overrides = tuple(argument for argument in arguments if argument not in words)
    if len(words) > 2:
        raise UserError(f"too many words: {' '.join(words)}; the form is [ENV MODEL] [KEY=VALUE ...]")
    environment = words[0] if words else "alfworld"
    if environment not in BENCHMARKS:
        raise UserError(f"unknown benchmark '{environment}': {nearest(environment, BENCHMARKS)}")
    return Request(environment, words[1] if len(words) == 2 else None, overrides)


def request_overrides(request: Request) -> list[str]:
    """The Hydra overrides of a request; what the user wrote comes last and wins."""
    if request.model is None:
        embedded = EMBEDDED_RUNS[request.environment]
        chosen = [
            f"env={request.environment}",
            f"recipe={embedded.recipe}",
            f"policy.path={_quoted(embedded.policy)}",
        ]
    else:
        name = Path(request.model).name
        chosen = [
            f"recipe={_recipe(request.environment, family(name))}",
            f"env={request.environment}",
            f"family={family(name)}",
            "hardware=8xgpu",
            f"policy.path={_quoted(_folder_or_expected(request.model))}",
            f"run.name={_quoted(f'rsipo-{name}-{request.environment}')}",
        ]
    given = {override.split("=", 1)[0].lstrip("+") for override in request.overrides}
    return [override for override in chosen if override.split("=", 1)[0] not in given] + list(request.overrides)


def _recipe(environment: str, model_family: str) -> str:
    """The published settings of a benchmark; some differ for a family of models, and then have a file of their own."""
    special = f"{environment}-{model_family}"
    return special if special in options("recipe") else environment


def train_command(arguments: Sequence[str], *, dry_run: bool) -> int:
    """Run ``rsipo train``; returns the exit status.

    Raises:
        UserError: everything that can be found wrong before a worker starts.
    """
    request = parse_request(arguments)
    if request.model is None:
        return _train_embedded(request, EMBEDDED_RUNS[request.environment], dry_run=dry_run)
    return _train(request_overrides(request), request.model, dry_run=dry_run)


def _train_embedded(request: Request, embedded: EmbeddedRun, *, dry_run: bool) -> int:
    """The embedded run: make its data, run what they need, train. A dry run makes and runs nothing."""
    overrides = request_overrides(request)
    settings = RunSettings.from_config(compose_run(overrides))
    if settings.run.name == embedded.name:
        overrides.append(f"run.name={_free_name(settings, embedded.name)}")
    if dry_run:
        made_later = not any(text.startswith("env.data_root=") for text in request.overrides)
        return _train(overrides, None, dry_run=True, made_later=made_later)
    serve = settings.debug.load_rollouts is None
    with embedded.ready(Path(settings.env.data_root), request.overrides, serve=serve) as where:
        return _train([*overrides, *where], None, dry_run=False)


def _train(overrides: Sequence[str], model: str | None, *, dry_run: bool, made_later: bool = False) -> int:
    config = compose_run(overrides)
    settings = RunSettings.from_config(config)
    plan, problems = inspect(config, settings, model or settings.policy.path, data_made_later=made_later)
    if dry_run:
        print_plan(settings, config, plan, problems)
        return 1 if problems else 0
    if problems:
        raise UserError("\nrsipo: ".join(problems))
    from rsipo.session import run_training

    return run_training(config, settings)


def print_plan(settings: RunSettings, config: DictConfig, plan: Plan | None, problems: Sequence[str]) -> None:
    """Print what a run would do: configuration, placement, sizes, memory, problems."""
    console = Console(soft_wrap=True)
    console.print("[bold]Resolved configuration[/bold]")
    console.print(OmegaConf.to_yaml(config, resolve=True), markup=False, highlight=False)
    if plan is not None:
        placement = Table("Process", "Count", "Where", title="Placement", title_justify="left")
        for what, count, where in plan.placement:
            placement.add_row(what, str(count), where)
        sizes = Table("Size", "Fits", title="Sizes", title_justify="left")
        for check in plan.checks:
            sizes.add_row(check.rule, "yes" if check.holds else f"no: {check.remedy}")
        unit = "GiB of host memory" if config.trainer.device == "cpu" else "GiB per GPU"
        memory = Table("Expected memory", unit, title="Memory", title_justify="left")
        for what, gib in plan.memory:
            memory.add_row(what, f"{gib:.2f}")
        for table in (placement, sizes, memory):
            console.print(table)
    console.print(f"Run folder: {settings.run.directory}", markup=False)
    for problem in problems:
        console.print(f"Problem: {problem}", markup=False, highlight=False)
    console.print("Nothing was started." if not problems else f"{len(problems)} problem(s); nothing was started.")


def _free_name(settings: RunSettings, name: str) -> str:
    """The newest embedded run when resuming, else the first free name, so that running twice just works."""
    runs = Path(settings.run.work_dir) / "runs"
    used = 1
    while RunFiles(runs / _numbered(name, used)).is_used():
        used += 1
    if settings.run.resume == "auto" and used > 1:
        used -= 1
    return _numbered(name, used)


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


def _folder_or_expected(name: str) -> Path:
    try:
        return model_folder(name)
    except UserError:
        if not re.fullmatch(r"[\w.\-/~]+", name):
            raise
        return models_root() / name  # the preflight says that it is missing


def _quoted(value: object) -> str:
    text = str(value)
    return text if re.fullmatch(r"[\w.\-/]+", text) else "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
