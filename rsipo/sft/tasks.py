"""``sampled_tasks.jsonl.gz``: which training tasks the base model plays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from agent_system.environments.base import EnvironmentSpec, Task
from rsipo.problems import UserError
from rsipo.record_lines import read_records, write_records
from rsipo.searchdata.files import write_json
from rsipo.sft.layout import SftFiles
from rsipo.sft.strata import draw, equal_quotas, proportional_quotas
from rsipo.tasks import by_type

COUNT = 500
SPLIT = "train"
_SAMPLE = "sample the tasks again (rsipo sft sample)"


def training_tasks(spec: EnvironmentSpec) -> list[Task]:
    """All training tasks of a benchmark, sorted by id.

    Raises:
        UserError: there are none, with the remedy.
    """
    try:
        return sorted(spec.tasks(SPLIT), key=lambda task: task.task_id)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error


def choose_tasks(tasks: Sequence[Task], benchmark: str, count: int, seed: int) -> list[Task]:
    """``count`` of the tasks, sorted by id.

    ALFWorld: as many of each task type (500: 84 or 83). Search: in the proportions of the sources in the file, whose builder
    has set them.

    Raises:
        UserError: too few tasks, of a type or altogether.
    """
    if len(tasks) < count:
        raise UserError(f"{len(tasks)} training tasks where {count} are wanted: add data, or ask for fewer")
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for task in tasks:
        groups[task.task_type].append(task.task_id)
    if benchmark == "search":
        quotas = proportional_quotas({name: len(ids) for name, ids in groups.items()}, count)
    else:
        quotas = equal_quotas(list(groups), count)
    chosen = draw(groups, quotas, seed=seed, purpose="sft tasks")
    return [task for task in sorted(tasks, key=lambda task: task.task_id) if task.task_id in chosen]


def write_tasks(files: SftFiles, tasks: Sequence[Task], benchmark: str, *, seed: int, available: int) -> None:
    """Write the sample.

    Raises:
        UserError: the folder holds another one.
    """
    rows = [task_row(task, benchmark) for task in tasks]
    if files.tasks.exists() and list(read_records(files.tasks, _SAMPLE)) != rows:
        raise UserError(
            f"{files.root} holds another sample of tasks; name another folder, or remove {files.tasks.name}"
        )
    write_records(files.tasks, rows)
    sampling = {"benchmark": benchmark, "tasks": by_type(tasks), "available": available, "seed": seed}
    write_json(files.sampling, sampling)


def task_row(task: Task, benchmark: str) -> dict[str, Any]:
    """A task as it is written: no path, so that the file means the same on another machine.

    On search also ``question``, ``answers``, ``data_source`` and ``row_index``, the row in the file of training questions.
    """
    row: dict[str, Any] = {
        "benchmark": benchmark,
        "task_id": task.task_id,
        "task_type": task.task_type,
        "split": SPLIT,
        "sha256": task.sha256,
    }
    if benchmark == "search":
        row |= {
            "question": task.extra["question"],
            "answers": list(task.extra["answers"]),
            "data_source": task.task_type,
            "row_index": int(task.location.rsplit("#", 1)[1]),
        }
    return row


def sampled_tasks(files: SftFiles, spec: EnvironmentSpec) -> list[Task]:
    """The sampled tasks, found again in the data, in the order of the sample.

    Raises:
        UserError: one is missing or has another content now.
    """
    known = {task.task_id: task for task in training_tasks(spec)}
    found = []
    for row in read_records(files.tasks, _SAMPLE):
        task = known.get(str(row.get("task_id")))
        if task is None or task.sha256 != row.get("sha256"):
            what = "is not among the training tasks" if task is None else "has another content now"
            raise UserError(f"{files.tasks}: task {row.get('task_id')} {what}; restore the data, or {_SAMPLE}")
        found.append(task)
    return found
