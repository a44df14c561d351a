"""The command ``rsipo warm-start``."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from rsipo.configuration import nearest
from rsipo.embedded.search_warm_start import warm_start_search
from rsipo.embedded.warm_start import warm_start
from rsipo.problems import UserError
from rsipo.stage_progress import StageProgress

_MILLION_TOKENS = {"alfworld": 10.0, "search": 8.0}


def warm_start_command(out: Path, environment: str, *, seed: int, million_tokens: float | None, threads: int) -> None:
    """Make the policy, say how far each stage is, and how it plays.

    Raises:
        UserError: an unknown benchmark; the folder holds a model already.
    """
    if environment not in _MILLION_TOKENS:
        raise UserError(f"unknown benchmark '{environment}': {nearest(environment, list(_MILLION_TOKENS))}")
    tokens = round((million_tokens or _MILLION_TOKENS[environment]) * 1e6)
    try:
        with StageProgress() as progress:
            if environment == "search":
                found = warm_start_search(out, seed=seed, tokens=tokens, threads=threads, progress=progress).measured
                what, student, teacher = f"{found.questions} unseen questions", found.student, found.teacher
                valid = found.valid_skill
            else:
                measured = warm_start(out, seed=seed, tokens=tokens, threads=threads, progress=progress).measured
                what, student, teacher = f"{measured.games} unseen tiny games", measured.student, measured.teacher
                valid = measured.valid_skill
    except FileExistsError as error:
        raise UserError(str(error)) from error
    Console(soft_wrap=True).print(
        f"{out}: on {what} the student wins {student:.0%}, with its own skill {teacher:.0%}; "
        f"{valid:.0%} of its skills are valid",
        markup=False,
    )
