"""The tasks of a benchmark: how many there are of each split, and their hash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from agent_system.environments.alfworld.check import OFFICIAL_COUNTS
from agent_system.environments.alfworld.generator.write import MANIFEST, read_manifest
from agent_system.environments.base import EnvironmentFault, Task
from rsipo.doctor.findings import Finding, Level
from rsipo.evaluation.panel import Panel
from rsipo.run_settings import RunSettings
from rsipo.specs import make_spec

_AREA = "data"
_SHOWN_DIGITS = 16


def check_data(settings: RunSettings, *, made_later: bool) -> Iterator[Finding]:
    """Findings for the splits that training, the evaluation during it and ``rsipo evaluate`` use.

    Args:
        made_later: the run generates its games, so their absence is no problem.
    """
    env = settings.env
    root = Path(env.data_root).expanduser()
    if made_later and not root.exists():
        yield Finding(_AREA, "tasks", "ok", f"{root} is made by the first run")
        return
    spec = make_spec(env)
    listed, problem = _manifest(root)
    if problem:
        yield Finding(_AREA, MANIFEST, "fail", problem, "generate the games again: rsipo games generate")
    released = env.name == "alfworld" and not listed
    expected = (OFFICIAL_COUNTS if released else {}) | dict(settings.panel.splits)
    evaluated = settings.evaluation.every or settings.evaluation.at_start or settings.evaluation.at_end
    needed = {env.train_split, *([settings.evaluation.split] if evaluated else [])}
    for split in sorted(needed | settings.panel.splits.keys(), key=lambda name: (name != env.train_split, name)):
        try:
            tasks = list(spec.tasks(split))
        except (OSError, ValueError, EnvironmentFault) as error:
            reason, _, remedy = str(error).rpartition(": ")
            level: Level = "fail" if split in needed else "warn"  # only an evaluation wants it
            yield Finding(_AREA, split, level, reason or str(error), remedy if reason else "complete the data")
            continue
        yield _split(env.name, split, tasks, expected.get(split), listed)


def _split(name: str, split: str, tasks: list[Task], expected: int | None, listed: Mapping[str, str]) -> Finding:
    types = len({task.task_type for task in tasks})
    digest = Panel(name, {split: tasks}).sha256[:_SHOWN_DIGITS]
    text = f"{len(tasks)} tasks of {types} types, sha256 {digest}…"
    changed = [task.task_id for task in tasks if listed.get(task.task_id, task.sha256) != task.sha256]
    if changed:
        return Finding(_AREA, split, "fail", f"{text}; {len(changed)} differ from {MANIFEST}, the first is {changed[0]}",
                       "generate or download these again; rsipo games check says more")  # fmt: skip
    if expected is not None and len(tasks) != expected:
        return Finding(_AREA, split, "warn", f"{text}, {expected} expected",
                       "complete the data; an evaluation refuses another number unless a subset is declared")  # fmt: skip
    return Finding(_AREA, split, "ok", text + (f", as in {MANIFEST}" if listed else ""))


def _manifest(root: Path) -> tuple[dict[str, str], str]:
    """sha256 of generated games by task id, and what is wrong with the manifest."""
    try:
        return {entry["path"]: entry["sha256"] for entry in read_manifest(root)}, ""
    except (OSError, ValueError) as error:
        return {}, str(error)
