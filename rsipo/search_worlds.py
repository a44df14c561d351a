"""The command ``rsipo search generate``."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from agent_system.environments.search.generator import generate
from rsipo.problems import UserError


def generate_command(out: Path, *, seed: int, train: int, test: int) -> None:
    """Generate a world and say what was written.

    Raises:
        UserError: more questions than the world can be asked; the folder holds other data, or cannot be written.
    """
    try:
        data = generate(out, seed=seed, train=train, test=test)
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from error
    table = Table("questions", "onehop", "twohop")
    for name, counts in (("train", data.train), ("test", data.test)):
        table.add_row(name, str(counts.get("onehop", 0)), str(counts.get("twohop", 0)))
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(f"{data.passages} passages and their questions {data.status} in {data.folder}", markup=False)
