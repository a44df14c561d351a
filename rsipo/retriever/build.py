"""``rsipo retriever build``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from agent_system.retrieval.build import BuildRequest, build_index
from agent_system.retrieval.threads import default_threads, limit_threads
from agent_system.retrieval.types import IndexProblem
from rsipo.problems import UserError


def build_command(out: Path, *, threads: int, **request: Any) -> None:
    """Build or reuse an index folder, with a progress bar per stage.

    Raises:
        UserError: see ``build_index``.
    """
    limit_threads(threads or default_threads())
    bars: dict[str, Any] = {}
    with Progress(transient=True) as progress:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in bars:
                bars[stage] = progress.add_task(stage)
            progress.update(bars[stage], completed=done, total=total)

        try:
            manifest, status = build_index(out, BuildRequest(**request), show)
        except IndexProblem as error:
            raise UserError(str(error)) from error
    kind = f"{manifest.kind} index of {manifest.rows} passages {status} in {out}"
    Console(soft_wrap=True).print(f"{kind}, fingerprint {manifest.fingerprint[:16]}", markup=False, highlight=False)
