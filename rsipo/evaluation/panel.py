"""The panel of an evaluation: an explicit list of tasks, each with its hash, that is played exactly once per round."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_system.environments.base import EnvironmentFault, EnvironmentSpec, Task
from agent_system.files import write_atomically
from rsipo.problems import UserError
from rsipo.run_settings import PanelSection
from rsipo.tasks import panel as spread_over_types

FORMAT = 1


@dataclass(frozen=True)
class Panel:
    """The tasks of each split, sorted by id. ``subset`` says how a panel that is not the whole one came about."""

    benchmark: str
    splits: dict[str, list[Task]]
    subset: str | None = None

    @property
    def tasks(self) -> list[tuple[str, Task]]:
        """Every (split, task), by split and id."""
        return [(split, task) for split in sorted(self.splits) for task in self.splits[split]]

    @property
    def sha256(self) -> str:
        """Hash of benchmark, splits, ids, types and contents; where the data lie and in which order does not matter."""
        return _digest(self.benchmark, self.rows())

    def rows(self) -> list[dict[str, str]]:
        """One row per task: ``split``, ``task_id`` (ALFWorld: the path relative to the data root), ``task_type``, ``sha256``."""
        return [
            {"split": split, "task_id": task.task_id, "task_type": task.task_type, "sha256": task.sha256}
            for split, task in self.tasks
        ]

    def write(self, path: Path) -> None:
        """Write the panel file."""
        content = {"format": FORMAT, "benchmark": self.benchmark, "subset": self.subset, "sha256": self.sha256}
        write_atomically(path, json.dumps(content | {"tasks": self.rows()}, indent=1) + "\n")


def make_panel(
    spec: EnvironmentSpec, settings: PanelSection, *, count: int | None = None, any_subset: bool = False
) -> Panel:
    """The panel that the settings ask for, or a declared subset of it.

    Args:
        count: at most so many tasks of each split, spread evenly over the task types: a declared subset.
        any_subset: take what is there, whatever the expected counts: a declared subset.

    Raises:
        UserError: a split is missing or has another number of tasks than expected, or the hash is not the expected one.
    """
    declared = any_subset or count is not None
    splits: dict[str, list[Task]] = {}
    missing = []
    for split, expected in settings.splits.items():
        try:
            found = sorted(spec.tasks(split), key=lambda task: task.task_id)
        except FileNotFoundError as error:
            missing.append(str(error))
            continue
        except (OSError, ValueError, EnvironmentFault) as error:
            raise UserError(str(error)) from error
        if expected is not None and len(found) != expected and not declared:
            raise UserError(
                f"split {split} has {len(found)} tasks where the panel has {expected}: complete the data, or declare a subset "
                "with --subset (all that is there) or --tasks N (N of each split)"
            )
        splits[split] = spread_over_types(found, count)
    if missing and not (declared and splits):
        raise UserError(missing[0])
    panel = Panel(spec.name, splits, _description(count) if declared else None)
    _check_once(panel)
    if settings.sha256 is not None and panel.sha256 != settings.sha256:
        raise UserError(
            f"the panel's hash is {panel.sha256}, panel.sha256 asks for {settings.sha256}: other tasks, or other contents"
        )
    return panel


def restrict_to_file(panel: Panel, path: Path) -> Panel:
    """Exactly the tasks of a panel file, found among those of ``panel`` with the same contents.

    Raises:
        UserError: the file is no panel, or a task of it is missing or has another content.
    """
    rows = _read_rows(path, panel.benchmark)
    present = {(split, task.task_id): task for split, task in panel.tasks}
    chosen: dict[str, list[Task]] = {}
    for row in rows:
        task = present.get((row["split"], row["task_id"]))
        if task is None:
            raise UserError(f"panel {path}: {row['task_id']} ({row['split']}) is not among the data")
        if (task.sha256, task.task_type) != (row["sha256"], row["task_type"]):
            raise UserError(f"panel {path}: {row['task_id']} has another content here (sha256 {task.sha256})")
        chosen.setdefault(row["split"], []).append(task)
    splits = {split: sorted(tasks, key=lambda task: task.task_id) for split, tasks in chosen.items()}
    whole = {split: len(tasks) for split, tasks in splits.items()} == {
        split: len(tasks) for split, tasks in panel.splits.items()
    }
    restricted = Panel(panel.benchmark, splits, None if whole else f"the {len(rows)} tasks of a panel file")
    _check_once(restricted)
    return restricted


def _read_rows(path: Path, benchmark: str) -> list[dict[str, str]]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        rows = [
            {name: str(row[name]) for name in ("split", "task_id", "task_type", "sha256")} for row in content["tasks"]
        ]
        declared = content["sha256"]
        found_benchmark = content["benchmark"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no panel file ({type(error).__name__}: {error})") from error
    if found_benchmark != benchmark:
        raise UserError(f"panel {path} is one of '{found_benchmark}', not of '{benchmark}'")
    if not rows or _digest(benchmark, rows) != declared:
        raise UserError(f"panel {path} was changed or cut off: its tasks do not have the hash it states")
    return rows


def _digest(benchmark: str, rows: Sequence[dict[str, str]]) -> str:
    lines = sorted("\t".join((row["split"], row["task_id"], row["task_type"], row["sha256"])) for row in rows)
    return hashlib.sha256("\n".join([benchmark, *lines]).encode()).hexdigest()


def _check_once(panel: Panel) -> None:
    counts = Counter(task.task_id for _, task in panel.tasks)
    if repeated := [name for name, number in counts.items() if number > 1]:
        raise UserError(f"the panel holds {repeated[0]} {counts[repeated[0]]} times; every task must stand in it once")
    if not counts:
        raise UserError("the panel is empty: there is no task to play")


def _description(count: int | None) -> str:
    return "whatever tasks are there" if count is None else f"{count} of each split, spread over the task types"
