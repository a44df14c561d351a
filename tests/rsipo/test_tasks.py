"""Which tasks a step trains on."""

from __future__ import annotations

import pytest

from agent_system.environments.base import Task
from rsipo.problems import UserError
from rsipo.tasks import TaskSampler, panel


def tasks(count: int, types: int = 3) -> list[Task]:
    return [Task(f"task-{index:03d}", f"type-{index % types}", "", f"sha-{index}") for index in range(count)]


def test_an_epoch_shows_no_task_twice_and_the_next_is_another_order() -> None:
    sampler = TaskSampler(tasks(10), per_step=3, seed=1)
    epochs = [[task.task_id for step in range(3 * e + 1, 3 * e + 4) for task in sampler.draw(step)] for e in range(2)]
    assert all(len(set(epoch)) == 9 for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_a_draw_depends_on_seed_and_step_alone() -> None:
    forward, shuffled = TaskSampler(tasks(10), 3, seed=1), TaskSampler(tasks(10)[::-1], 3, seed=1)
    assert [forward.draw(step) for step in (1, 2, 7)] == [shuffled.draw(step) for step in (1, 2, 7)]
    assert forward.draw(1) != TaskSampler(tasks(10), 3, seed=2).draw(1)


def test_a_task_left_out_is_replaced_and_all_others_stay() -> None:
    whole, less = TaskSampler(tasks(10), 3, seed=1), TaskSampler(tasks(10), 3, seed=1)
    less.leave_out(["task-004", "task-007"])
    assert less.left_out == ["task-004", "task-007"]
    for step in range(1, 13):
        before, after = ([task.task_id for task in sampler.draw(step)] for sampler in (whole, less))
        assert len(set(after)) == 3
        assert not {"task-004", "task-007"} & set(after)
        assert all(old == new for old, new in zip(before, after, strict=True) if old not in less.left_out)
    assert less.digest() == whole.digest()


def test_too_few_tasks_that_can_be_played_are_told() -> None:
    sampler = TaskSampler(tasks(4), 3, seed=1)
    sampler.leave_out(["task-000", "task-001"])
    with pytest.raises(UserError, match=r"2 playable training tasks are left for training\.tasks_per_step=3: 2 cannot"):
        sampler.draw(1)


def test_the_digest_sees_other_tasks_and_other_content() -> None:
    digest = TaskSampler(tasks(4), 2, 0).digest()
    assert digest == TaskSampler(tasks(4)[::-1], 2, 5).digest()
    assert digest != TaskSampler(tasks(5), 2, 0).digest()
    assert digest != TaskSampler([*tasks(3), Task("task-003", "type-0", "", "other")], 2, 0).digest()


def test_too_few_tasks_are_refused() -> None:
    with pytest.raises(UserError, match=r"2 training tasks for training\.tasks_per_step=3"):
        TaskSampler(tasks(2), 3, 0)


def test_a_panel_spreads_over_the_types() -> None:
    chosen = panel(tasks(30), 7)
    assert len(chosen) == len({task.task_id for task in chosen}) == 7
    assert sorted(task.task_type for task in chosen).count("type-0") == 3
    assert panel(tasks(5), None) == panel(tasks(5), 9) == tasks(5)
