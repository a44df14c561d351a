"""The command ``rsipo warm-start``."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from rsipo.embedded.warm_start import warm_start
from rsipo.problems import UserError


def warm_start_command(out: Path, *, seed: int, million_tokens: float, threads: int) -> None:
    """Make the policy, with a progress bar per stage, and say how it plays."""
    description = TextColumn("{task.description}")
    columns = (description, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns) as bars:
            stages: dict[str, TaskID] = {}

            def progress(stage: str, done: int, total: int) -> None:
                if stage not in stages:
                    stages[stage] = bars.add_task(stage, total=total)
                bars.update(stages[stage], completed=done)

            made = warm_start(out, seed=seed, tokens=round(million_tokens * 1e6), threads=threads, progress=progress)
    except FileExistsError as error:
        raise UserError(str(error)) from error
    measured = made.measured
    Console(soft_wrap=True).print(
        f"{out}: on {measured.games} unseen tiny games the student wins {measured.student:.0%}, with its own skill "
        f"{measured.teacher:.0%}; {measured.valid_skill:.0%} of its skills are valid",
        markup=False,
    )
