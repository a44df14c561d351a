"""What a run prints: one line per step, and a table at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from rich.table import Table

from rsipo.run_console import RunConsole
from rsipo.run_files import RunFiles

Metrics = dict[str, Any]

_PHASES = ("rollouts", "log_probs", "teacher", "update", "weight_sync", "checkpoint", "evaluation")


def print_step(console: RunConsole, step: int, total: int, metrics: Metrics) -> None:
    """One line: where the run is, how well student and teacher did, what the check says, and how long it took."""
    parts = [f"step {step}/{total}"]
    for label, name, form in (
        ("student", "student/success", "{:.0%}"),
        ("teacher", "teacher/success", "{:.0%}"),
        ("gain", "check/gain", "{:+.3f}"),
        ("trust", "check/trust", "{:.2f}"),
        ("valid skills", "skill/valid", "{:.0%}"),
        ("grad norm", "update/grad_norm", "{:.2f}"),
        ("held-out", "evaluation/success", "{:.1%}"),
    ):
        if name in metrics:
            parts.append(f"{label} {form.format(metrics[name])}")
    seconds = sum(value for name, value in metrics.items() if name.startswith("seconds/"))
    if seconds:
        parts.append(f"{seconds:.1f} s")
    if metrics.get("update/applied") is False:
        parts.append("UPDATE SKIPPED: non-finite gradient, statistics not committed")
    console.print(" · ".join(parts))


def loss_lines(results: Sequence[Any], limit: int = 5) -> list[str]:
    """What went wrong with the episodes of one phase: each reason once, with how many episodes it took.

    ``results`` holds lists of episodes or task records.
    """
    episodes = [
        episode
        for result in results
        for episode in (result if isinstance(result, list) else [*result.episodes, *result.replays])
    ]
    reasons = Counter(f"{episode.status}: {episode.error}" for episode in episodes if episode.error)
    reasons.update(f"skill lost: {error}" for result in results for error in getattr(result, "errors", ()))
    lines = [f"{count} x {reason}" for reason, count in reasons.most_common(limit)]
    more = len(reasons) - len(lines)
    return [*lines, f"and {more} other reasons"] if more > 0 else lines


def print_summary(console: RunConsole, rows: Sequence[Metrics], files: RunFiles) -> None:
    """The table of a run: its first and last quarter of steps beside each other, held-out success, seconds per phase."""
    steps = [row for row in rows if row["step"] > 0]
    if steps:
        quarter = max(1, len(steps) // 4)
        first, last = steps[:quarter], steps[-quarter:]
        table = Table("", f"first {quarter} steps", f"last {quarter} steps", title="Training", title_justify="left")
        for label, name, form in (
            ("student success", "student/success", "{:.1%}"),
            ("teacher success (replays)", "teacher/success", "{:.1%}"),
            ("replay gain", "check/gain", "{:+.3f}"),
            ("trust", "check/trust", "{:.3f}"),
            ("valid skills", "skill/valid", "{:.1%}"),
            ("admissible actions", "student/admissible_actions", "{:.1%}"),
        ):
            table.add_row(label, _mean(first, name, form), _mean(last, name, form))
        for phase in _PHASES:
            name = f"seconds/{phase}"
            if any(name in row for row in steps):
                table.add_row(f"seconds, {phase}", _mean(first, name, "{:.1f}"), _mean(last, name, "{:.1f}"))
        console.print(table)
    held_out = [row for row in rows if "evaluation/success" in row]
    if held_out:
        table = Table(
            "step",
            "success",
            "episodes",
            "turns",
            title="Held-out tasks, student, no skill in the prompt",
            title_justify="left",
        )
        for row in held_out:
            table.add_row(
                str(row["step"]),
                f"{row['evaluation/success']:.1%}",
                str(row["evaluation/episodes"]),
                f"{row['evaluation/turns']:.1f}",
            )
        console.print(table)
    console.print(f"Run: {files.root}")


def _mean(rows: Sequence[Metrics], name: str, form: str) -> str:
    values = [row[name] for row in rows if row.get(name) is not None]
    return form.format(fmean(values)) if values else "–"
