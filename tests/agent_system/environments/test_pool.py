"""Pools of environments: in this process, and on Ray hosts that get killed and stopped."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent_system.environments.alfworld.spec import AlfworldSpec
from agent_system.environments.base import BadTask, EnvironmentFault, StepResult, Task
from agent_system.environments.client import EnvPool, LocalEnvPool

pytestmark = pytest.mark.ray

Walkthrough = Callable[[Task], list[str]]
AnyPool = EnvPool | LocalEnvPool


@pytest.fixture(scope="module", autouse=True)
def cluster(small_ray: Callable) -> Iterator[None]:
    environment = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        with small_ray():
            yield


@pytest.fixture(scope="module")
def spec(games: Path, tmp_path_factory: pytest.TempPathFactory) -> AlfworldSpec:
    return AlfworldSpec(str(games), cache_dir=str(tmp_path_factory.mktemp("cache")))


def hosts() -> list[psutil.Process]:
    """The host processes of this cluster (not of any other on this machine)."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline()[:1] == ["ray::EnvHost"] or "EnvHost" in " ".join(process.cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


async def win(
    pool: AnyPool, task: Task, actions: list[str], before_step: Callable[[int], None] = lambda _: None
) -> Any:
    session = await pool.acquire()
    try:
        first = await session.reset(task)
        for number, action in enumerate(actions):
            before_step(number)
            result = await session.step(action)
        return first.fingerprint, result.success
    finally:
        session.release()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 120))


def test_a_local_pool_has_the_same_interface(spec: AlfworldSpec, tasks: list[Task], walkthrough: Walkthrough) -> None:
    async def main() -> None:
        pool = LocalEnvPool(spec, 2)
        results = await asyncio.gather(*[win(pool, task, walkthrough(task)) for task in tasks])
        assert all(success for _, success in results)
        session = await pool.acquire()
        with pytest.raises(EnvironmentFault, match=r"was never reset|no episode"):
            await session.step("look")
        with pytest.raises(BadTask, match="cannot be read"):
            await session.reset(replace(tasks[0], location="/nowhere"))
        session.release()
        session.release()
        with pytest.raises(EnvironmentFault, match="released"):
            await session.reset(tasks[0])
        await pool.close()

    run(main())


def test_episodes_share_calls_wait_for_slots_and_survive_bad_tasks(
    spec: AlfworldSpec, tasks: list[Task], walkthrough: Walkthrough, tmp_path: Path
) -> None:
    bad = tmp_path / "game.tw-pddl"
    bad.write_text(Path(tasks[0].location).read_text().replace("agent1 - agent", "agent1 - agent agent1 - agent", 1))

    async def main() -> None:
        pool = EnvPool(spec, num_hosts=1, slots_per_host=4)
        results = await asyncio.gather(*[win(pool, task, walkthrough(task)) for task in tasks])  # 6 episodes, 4 slots
        assert all(success for _, success in results)
        local = [await win(LocalEnvPool(spec, 1), task, walkthrough(task)) for task in tasks[:2]]
        assert results[:2] == local  # same fingerprints in another process
        counters = pool.counters
        assert (counters.resets, counters.restarts, counters.lost) == (6, 0, 0)
        assert counters.steps == sum(len(walkthrough(task)) for task in tasks)
        assert counters.calls < counters.resets + counters.steps

        session = await pool.acquire()
        with pytest.raises(EnvironmentFault, match="reset the session first"):
            await session.step("look")
        with pytest.raises(BadTask, match="SystemExit"):
            await session.reset(Task("bad", tasks[0].task_type, str(bad), ""))
        with pytest.raises(EnvironmentFault, match="reset the session first"):
            await session.step("look")
        assert (await session.reset(tasks[0])).instruction
        assert pool.counters.restarts == 0

        # Steps that are started together travel together, each to its own slot.
        others = [await pool.acquire() for _ in range(3)]
        for other in others:
            await other.reset(tasks[0])
        calls = pool.counters.calls
        answers = await asyncio.gather(session.step("look"), others[0].step("inventory"), others[1].step("fly"))
        assert pool.counters.calls == calls + 1
        assert [answer.admissible for answer in answers] == [True, True, False]

        full = asyncio.ensure_future(pool.acquire())
        await asyncio.sleep(0.05)
        assert not full.done()
        others[0].release()
        assert await full

        waiting = asyncio.ensure_future(session.reset(tasks[1]))
        await asyncio.sleep(0)
        await pool.close()
        with pytest.raises(EnvironmentFault, match="closed"):
            await waiting

    run(main())


def test_a_group_shares_a_host_and_tasks_spread(spec: AlfworldSpec, tasks: list[Task]) -> None:
    async def main() -> None:
        pool = EnvPool(spec, num_hosts=2, slots_per_host=4)
        sessions = [await pool.acquire() for _ in range(6)]
        pending = [
            asyncio.ensure_future(session.reset(task))
            for session, task in zip(sessions, [tasks[0], tasks[1]] * 3, strict=True)
        ]
        await asyncio.sleep(0)
        loads = [[host.serves(task.task_id) for task in tasks[:2]] + [host.load] for host in pool._hosts]
        assert loads == [[True, False, 3], [False, True, 3]]
        await pool.close()
        await asyncio.gather(*pending, return_exceptions=True)

    run(main())


def test_a_killed_host_is_replaced_and_its_episodes_go_on(
    spec: AlfworldSpec, tasks: list[Task], walkthrough: Walkthrough
) -> None:
    async def main() -> None:
        pool = EnvPool(spec, num_hosts=1, slots_per_host=4)

        def kill(number: int) -> None:
            if number == 2:
                (host,) = hosts()
                os.kill(host.pid, signal.SIGKILL)

        expected = [await win(LocalEnvPool(spec, 1), task, walkthrough(task)) for task in tasks[:3]]
        results = await asyncio.gather(
            win(pool, tasks[0], walkthrough(tasks[0]), kill),
            *[win(pool, task, walkthrough(task)) for task in tasks[1:3]],
        )
        assert results == expected
        assert pool.counters.restarts == 1
        assert pool.counters.lost == 0
        assert 1 <= pool.counters.restored <= 3
        await pool.close()

    run(main())


def test_a_stuck_host_misses_its_deadline_and_is_replaced(spec: AlfworldSpec, tasks: list[Task]) -> None:
    async def main() -> None:
        pool = EnvPool(spec, num_hosts=1, slots_per_host=2, call_deadline_s=3.0)
        session = await pool.acquire()
        await session.reset(tasks[0])
        first = await session.step("look")
        (host,) = hosts()
        os.kill(host.pid, signal.SIGSTOP)
        try:
            assert await session.step("look") == first
            assert pool.counters.restarts == 1
            assert pool.counters.restored == 1
            (new,) = [process for process in hosts() if process.pid != host.pid]
            assert new.is_running()
        finally:
            if host.is_running():
                os.kill(host.pid, signal.SIGKILL)
            await pool.close()

    run(main())


def test_an_episode_that_cannot_be_brought_back_is_lost_alone(
    spec: AlfworldSpec, tasks: list[Task], tmp_path: Path
) -> None:
    game = tmp_path / "game.tw-pddl"
    shutil.copy(tasks[0].location, game)

    async def main() -> None:
        pool = EnvPool(spec, num_hosts=1, slots_per_host=2)
        doomed, other = await pool.acquire(), await pool.acquire()
        await doomed.reset(replace(tasks[0], location=str(game)))
        await other.reset(tasks[1])
        game.unlink()
        (host,) = hosts()
        os.kill(host.pid, signal.SIGKILL)
        outcomes = await asyncio.gather(doomed.step("look"), other.step("look"), return_exceptions=True)
        assert isinstance(outcomes[0], EnvironmentFault)
        assert "could not be replayed" in str(outcomes[0])
        assert isinstance(outcomes[1], StepResult)
        with pytest.raises(EnvironmentFault, match="could not be replayed"):
            await doomed.step("look")
        assert pool.counters.lost == 1
        assert (await doomed.reset(tasks[2])).instruction
        assert (await doomed.step("look")).admissible
        await pool.close()

    run(main())


def test_a_step_that_nobody_waits_for_leaves_the_slot_usable(spec: AlfworldSpec, tasks: list[Task]) -> None:
    async def main() -> None:
        pool = EnvPool(spec, num_hosts=1, slots_per_host=1)
        session = await pool.acquire()
        await session.reset(tasks[0])
        given_up = asyncio.ensure_future(session.step("look"))
        await asyncio.sleep(0)
        given_up.cancel()
        session.release()
        again = await pool.acquire()
        assert (await again.reset(tasks[1])).instruction
        assert (await again.step("look")).admissible
        assert pool.counters.restarts == 0
        await pool.close()

    run(main())


@pytest.mark.parametrize("counts", [(0, 4), (1, 0)])
def test_empty_pools_are_refused(spec: AlfworldSpec, counts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        EnvPool(spec, *counts)
