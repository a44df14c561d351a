"""Which tasks a step trains on: seeded permutations without replacement, a pure function of (seed, step)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from agent_system.environments.base import Task
from rsipo.problems import UserError


class TaskSampler:
    """Draws ``per_step`` distinct tasks for every step.

    An epoch is one permutation cut into whole batches; its remainder (fewer than ``per_step`` tasks, others each epoch) sits
    that epoch out, so no batch holds a task twice. A draw is a function of seed, step and the tasks left out, so it resumes
    exactly.

    Raises:
        UserError: fewer tasks than a step needs.
    """

    def __init__(self, tasks: Sequence[Task], per_step: int, seed: int) -> None:
        if len(tasks) < per_step:
            raise UserError(
                f"{len(tasks)} training tasks for training.tasks_per_step={per_step}: lower it or add tasks"
            )
        self._tasks = sorted(tasks, key=lambda task: task.task_id)
        self._per_step = per_step
        self._seed = seed
        self._left_out: set[str] = set()

    @property
    def batches_per_epoch(self) -> int:
        return len(self._tasks) // self._per_step

    @property
    def left_out(self) -> list[str]:
        """Ids of the tasks that are not drawn any more, sorted."""
        return sorted(self._left_out)

    def leave_out(self, task_ids: Iterable[str]) -> None:
        """Draw these tasks no more: they cannot be played."""
        self._left_out.update(task_ids)

    def draw(self, step: int) -> list[Task]:
        """The tasks of ``step`` (counted from 1). In the place of one left out comes another; the rest stays as it is.

        Raises:
            UserError: too few tasks are left.
        """
        epoch, batch = divmod(step - 1, self.batches_per_epoch)
        order = self._order(epoch)
        chosen = order[batch * self._per_step : (batch + 1) * self._per_step]
        if not self._left_out.isdisjoint(task.task_id for task in chosen):
            chosen = self._substitute(chosen, step)
        return chosen

    def _order(self, *key: int) -> list[Task]:
        order = np.random.default_rng([self._seed, *key]).permutation(len(self._tasks))
        return [self._tasks[index] for index in order]

    def _substitute(self, chosen: Sequence[Task], step: int) -> list[Task]:
        drawn = {task.task_id for task in chosen}
        others = (task for task in self._order(step, 1) if task.task_id not in drawn | self._left_out)
        try:
            return [next(others) if task.task_id in self._left_out else task for task in chosen]
        except StopIteration as error:
            playable = len(self._tasks) - len(self._left_out)
            raise UserError(
                f"{playable} playable training tasks are left for training.tasks_per_step={self._per_step}: "
                f"{len(self._left_out)} cannot be played; check the data (rsipo games check)"
            ) from error

    def digest(self) -> str:
        """Hash of the task set and the batch size: a resumed run must see the same."""
        text = "\n".join(f"{task.task_id} {task.sha256}" for task in self._tasks)
        return hashlib.sha256(f"{self._per_step}\n{text}".encode()).hexdigest()


def panel(tasks: Sequence[Task], count: int | None) -> list[Task]:
    """The held-out tasks of an evaluation: all of them, or ``count`` spread evenly over the task types, sorted by id."""
    if count is None or count >= len(tasks):
        return sorted(tasks, key=lambda task: task.task_id)
    by_type: dict[str, list[Task]] = {}
    for task in sorted(tasks, key=lambda task: task.task_id):
        by_type.setdefault(task.task_type, []).append(task)
    chosen: list[Task] = []
    depth = 0
    while len(chosen) < count:
        layer = [by_type[name][depth] for name in sorted(by_type) if depth < len(by_type[name])]
        chosen += layer[: count - len(chosen)]
        depth += 1
    return sorted(chosen, key=lambda task: task.task_id)


def by_type(tasks: Sequence[Task]) -> dict[str, int]:
    """How many tasks there are of each type."""
    return dict(sorted(Counter(task.task_type for task in tasks).items()))
