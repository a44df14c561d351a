from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from agent_system.environments.client import EnvPool
from agent_system.rollout.program import GroupRollout
from agent_system.rollout.scripted import ScriptedPolicy

pytestmark = pytest.mark.ray
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass(frozen=True)
class DieOnce:
    """Kills its worker the first time it runs ``victim``, else plays."""

    victim: str
    marker: Path
    program: GroupRollout

    async def run(self, task, context):
        if task.task_id == self.victim and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return await self.program.run(task, context)


@dataclass(frozen=True)
class Die:
    async def run(self, task, context):
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Hang:
    """Never ends on ``victims``; gives the process id on other tasks."""

    victims: tuple[str, ...]

    async def run(self, task, context):
        if task.task_id in self.victims:
            await asyncio.sleep(3600)
        return os.getpid()


@dataclass(frozen=True)
class Break:
    async def run(self, task, context):
        return {}["missing"]


@pytest.fixture(scope="module")
def cluster(small_ray):
    with small_ray():
        yield


@pytest.fixture(scope="module")
def pool(cluster, spec, prompter, player):
    from ray import cloudpickle

    from agent_system.rollout.episode import Deadlines
    from agent_system.rollout.pool import RolloutPool
    from agent_system.rollout.program import RolloutSettings

    for module in (sys.modules[__name__], sys.modules[type(player).__module__]):
        cloudpickle.register_pickle_by_value(module)
    pool = RolloutPool(
        2,
        spec=spec,
        prompter=prompter,
        client=ScriptedPolicy(prompter, player),
        open_sessions=lambda number: EnvPool(spec, num_hosts=1, slots_per_host=2),
        settings=RolloutSettings(7, 64, Deadlines(turn_s=60, episode_s=120), concurrent_tasks=2),
        task_retries=1,
    )
    yield pool
    pool.close()


def test_every_task_comes_back_once_with_its_index(pool, tasks, player):
    beats = []
    results = dict(pool.submit(GroupRollout(2), tasks, 1, deadline_s=240, heartbeat_s=0.2, on_heartbeat=beats.append))
    assert sorted(results) == list(range(len(tasks)))
    for index, episodes in results.items():
        assert [episode.task_id for episode in episodes] == [tasks[index].task_id] * 2
        assert all(episode.success for episode in episodes)
    assert beats
    assert all(beat.total == 6 and beat.finished < 6 and len(beat.workers) == 2 for beat in beats)


def test_a_killed_worker_is_replaced_and_its_tasks_run_again(pool, tasks, tmp_path):
    before = dict(pool.counters)
    program = DieOnce(tasks[2].task_id, tmp_path / "died", GroupRollout(1))
    results = dict(pool.submit(program, tasks, 2, deadline_s=240))
    assert sorted(results) == list(range(len(tasks)))
    assert all(episode.success for episodes in results.values() for episode in episodes)
    assert pool.counters["workers_replaced"] - before.get("workers_replaced", 0) == 1
    assert 1 <= pool.counters["tasks_resubmitted"] - before.get("tasks_resubmitted", 0) <= 2


def test_a_phase_deadline_names_the_unfinished_tasks_and_cancels_them(pool, tasks):
    from agent_system.rollout.pool import PhaseDeadline

    results = pool.submit(Hang((tasks[3].task_id,)), tasks, 4, deadline_s=15)
    finished = [next(results)[0] for _ in range(5)]
    with pytest.raises(PhaseDeadline, match="1 tasks unfinished") as caught:
        next(results)
    assert caught.value.unfinished == [tasks[3].task_id]
    assert sorted(finished) == [0, 1, 2, 4, 5]
    # What was cancelled leaves its worker: the next phase finds all of them idle.
    assert len(dict(pool.submit(Hang(()), tasks, 5, deadline_s=60))) == 6
    assert all(not progress["running"] for progress in pool._progress())


def test_an_error_of_the_program_propagates(pool, tasks):
    with pytest.raises(KeyError, match="missing"):
        list(pool.submit(Break(), tasks[:1], 6, deadline_s=60))


def test_leaving_early_cancels_the_rest(pool, tasks):
    results = pool.submit(Hang(tuple(task.task_id for task in tasks[1:])), tasks, 7, deadline_s=60)
    assert next(results)[0] == 0
    results.close()
    assert len(dict(pool.submit(Hang(()), tasks, 8, deadline_s=60))) == 6


def test_a_task_that_kills_every_worker_ends_the_phase_and_is_named(pool, tasks):
    from agent_system.rollout.pool import WorkerLost

    with pytest.raises(WorkerLost, match="died again") as caught:
        list(pool.submit(Die(), tasks[:1], 3, deadline_s=240))
    assert tasks[0].task_id in str(caught.value)


def test_close_ends_the_workers(pool, tasks):
    """Last in this file: the pool is gone afterwards."""
    processes = set(dict(pool.submit(Hang(()), tasks, 9, deadline_s=60)).values())
    pool.close()
    end = time.monotonic() + 20
    while any(psutil.pid_exists(process) for process in processes) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(psutil.pid_exists(process) for process in processes)
