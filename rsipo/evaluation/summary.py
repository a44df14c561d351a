"""``summary.json`` and the table: success per split and task type, with spread and interval, and what else was counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import numpy as np
from rich.table import Table

from agent_system.environments.base import Task
from rsipo.evaluation.episodes import Key, Outcome
from rsipo.evaluation.panel import Panel
from rsipo.evaluation.statistics import LEVEL, RESAMPLES, estimate

FORMAT = 1


def summarise(
    panel: Panel, seeds: Sequence[int], outcomes: Mapping[Key, Outcome], identity: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of ``summary.json``: a pure function of the episodes, whenever and in whatever order they were played.

    A lost episode counts as a task not solved, and is counted as lost: leaving it out would favour policies whose
    long episodes run into deadlines. Turns and actions are means over the episodes that were not lost.

    Args:
        outcomes: of every task of the panel for every seed.
        identity: what was evaluated and how; stands at the head.

    Raises:
        KeyError: an episode is missing.
    """
    splits = {}
    for split, tasks in panel.splits.items():
        types = {name: [task for task in tasks if task.task_type == name] for name in _types(tasks)}
        cells = {name: _cell(split, name, group, seeds, outcomes) for name, group in types.items()}
        splits[split] = _cell(split, "", tasks, seeds, outcomes)
        splits[split]["success"]["mean_over_types"] = fmean(cell["success"]["mean"] for cell in cells.values())
        splits[split]["types"] = cells
    interval = {"level": LEVEL, "method": "percentile cluster bootstrap over tasks", "resamples": RESAMPLES}
    return {"format": FORMAT, **identity, "interval": interval, "splits": splits}


def _types(tasks: Iterable[Task]) -> list[str]:
    return sorted({task.task_type for task in tasks})


def _cell(
    split: str, task_type: str, tasks: Sequence[Task], seeds: Sequence[int], outcomes: Mapping[Key, Outcome]
) -> dict[str, Any]:
    """One line of the table; ``task_type`` is empty for the whole split."""
    table = [[outcomes[Key(split, seed, task.task_id)] for seed in seeds] for task in tasks]
    success = estimate(np.array([[o.success for o in row] for row in table], dtype=float), split, task_type)
    played = [outcome for row in table for outcome in row if not outcome.lost]
    turns = sum(outcome.turns for outcome in played)
    return {
        "tasks": len(tasks),
        "episodes": len(tasks) * len(seeds),
        "success": asdict(success),
        "turns": turns / len(played) if played else None,
        "invalid_actions": sum(outcome.invalid_actions for outcome in played) / turns if turns else None,
        "inadmissible_actions": sum(outcome.inadmissible_actions for outcome in played) / turns if turns else None,
        "lost": len(tasks) * len(seeds) - len(played),
        "cut_short": sum(outcome.cut_short for outcome in played),
    }


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The summary for the console; fits 80 columns."""
    seeds = summary["protocol"]["seeds"]
    title = f"Success over {len(seeds)} round{'s' if len(seeds) > 1 else ''}, no skill in the prompt"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("split, task type", no_wrap=True)
    for name in ("tasks", "success, %", "95 %", "turns", "inv. %", "lost"):
        table.add_column(name, justify="right", no_wrap=True)
    for split, whole in summary["splits"].items():
        table.add_row(split, *_row(whole), style="bold")
        for name, cell in whole["types"].items():
            table.add_row(f" {name}", *_row(cell))
    return table


def _row(cell: Mapping[str, Any]) -> list[str]:
    success = cell["success"]
    low, high = success["interval"]
    spread = "" if success["std"] is None else f" ± {100 * success['std']:.1f}"
    return [
        str(cell["tasks"]),
        f"{100 * success['mean']:.1f}{spread}",
        f"{100 * low:.1f}–{100 * high:.1f}",
        "–" if cell["turns"] is None else f"{cell['turns']:.1f}",
        "–" if cell["invalid_actions"] is None else f"{100 * cell['invalid_actions']:.1f}",
        str(cell["lost"]),
    ]
