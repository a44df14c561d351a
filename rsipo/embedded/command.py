"""The command ``rsipo warm-start``."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from rsipo.embedded.warm_start import warm_start
from rsipo.problems import UserError
from rsipo.stage_progress import StageProgress


def warm_start_command(out: Path, *, seed: int, million_tokens: float, threads: int) -> None:
    """Make the policy, say how far each stage is, and how it plays."""
    try:
        with StageProgress() as progress:
            made = warm_start(out, seed=seed, tokens=round(million_tokens * 1e6), threads=threads, progress=progress)
    except FileExistsError as error:
        raise UserError(str(error)) from error
    measured = made.measured
    Console(soft_wrap=True).print(
        f"{out}: on {measured.games} unseen tiny games the student wins {measured.student:.0%}, with its own skill "
        f"{measured.teacher:.0%}; {measured.valid_skill:.0%} of its skills are valid",
        markup=False,
    )
