"""``rsipo report``: from run folders to one HTML file and a PNG of every figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from agent_system.files import write_atomically
from rsipo.problems import UserError
from rsipo.run_files import RunFiles

PAGE = "report.html"


def report_command(roots: Sequence[Path], out: Path | None) -> None:
    """Write the report of one or several runs.

    Args:
        roots: run folders, in the order of their colours.
        out: folder to write into; None: ``report`` in the run's folder, or in the current one for several runs.

    Raises:
        UserError: a folder is no run or holds a damaged file, or a library of the report is missing.
    """
    try:
        from rsipo.report.build import build_report
    except ModuleNotFoundError as error:
        raise UserError(f"a report needs {error.name}, which is not installed: pip install -e '.[report]'") from error

    folder = out or (RunFiles(roots[0]).root if len(roots) == 1 else Path.cwd()) / "report"
    with Progress(transient=True) as progress:
        bar = progress.add_task("reading", total=None)
        files = build_report(
            roots,
            progress=lambda what, done, total: progress.update(bar, description=what, completed=done, total=total),
        )
    for name, content in files.items():
        write_atomically(folder / name, content)
    size = len(files[PAGE]) / 2**20
    Console(soft_wrap=True).print(
        f"{folder / PAGE} ({size:.1f} MiB) and {len(files) - 1} figures", markup=False, highlight=False
    )
