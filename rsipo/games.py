"""The ``rsipo games`` commands, and the games of the embedded run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agent_system.environments.alfworld.check import check_games
from agent_system.environments.alfworld.generator import GenerationReport, generate_games, parse_knobs
from rsipo.problems import UserError
from rsipo.stage_progress import StageProgress

#: split -> (number of games, first seed) of the embedded run. Its training games are none that the warm start was shown.
EMBEDDED_GAMES = {"train": (500, 100_000), "valid_unseen": (60, 0)}


def ensure_embedded_games(root: Path) -> None:
    """Generate the embedded run's tiny games, or find them already there."""
    for split, (count, seed) in EMBEDDED_GAMES.items():
        report = _generate(root, split=split, count=count, size="tiny", seed=seed)
        if report.status != "reused":
            Console(soft_wrap=True).print(f"{report.count} {split} games {report.status} in {root}", markup=False)


def generate_command(
    out: Path, *, split: str, count: int, size: str, seed: int, task: str | None, knobs: Sequence[str]
) -> None:
    """``rsipo games generate``."""
    try:
        values = parse_knobs(knobs)
    except ValueError as error:
        raise UserError(str(error)) from error
    report = _generate(out, split=split, count=count, size=size, seed=seed, task=task, knobs=values)
    table = Table("task type", "games")
    for name, number in report.per_task.items():
        table.add_row(name, str(number))
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(f"{report.count} {split} games {report.status} in {report.root}", markup=False)


def _generate(out: Path, **request: object) -> GenerationReport:
    try:
        with StageProgress(transient=True) as progress:
            stage = f"generating {request['split']} games"
            return generate_games(out, progress=partial(progress, stage), **request)  # type: ignore[arg-type]
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from error


def check_command(directory: Path, *, play: bool) -> int:
    """``rsipo games check``: 0 when every game is good, else 1."""
    console = Console(soft_wrap=True)
    try:
        with StageProgress(transient=True) as progress:
            advance = partial(progress, "checking games")
            report = check_games(directory, play=play, processes=os.cpu_count() or 1, progress=advance)
    except (FileNotFoundError, ValueError) as error:
        raise UserError(str(error)) from error
    table = Table("split", "task type", "games")
    for split, types in report.counts.items():
        for name, number in types.items():
            table.add_row(split, name, str(number))
    console.print(table)
    for problem in report.problems:
        console.print(f"{problem.path}: {problem.reason}", markup=False, highlight=False)
    for split, (found, released) in report.incomplete.items():
        console.print(f"{split}: {found} of the {released} games of the ALFWorld release", markup=False)
    console.print(f"{report.total} games, {len(report.problems)} problem(s)", markup=False)
    return 1 if report.problems else 0
