from __future__ import annotations

import asyncio
import dataclasses

import pytest

from agent_system.rollout.program import GroupRollout, PanelEpisode
from agent_system.rollout.scripted import ScriptedPolicy
from agent_system.rollout.worker import RolloutWorker


@pytest.fixture
def make_worker(prompter, spec, sessions, settings):
    def make(script, **changes):
        chosen = dataclasses.replace(settings, **changes)
        return RolloutWorker(spec, prompter, ScriptedPolicy(prompter, script), lambda: sessions, chosen)

    return make


def test_a_group_is_equal_starts_with_different_seeds(run, make_worker, tasks, player):
    episodes = run(make_worker(player).run_task(GroupRollout(num_rollouts=6), tasks[0], 1))
    assert [episode.index for episode in episodes] == list(range(6))
    assert all(episode.success for episode in episodes)
    assert len({episode.fingerprint for episode in episodes}) == 1


def test_a_panel_is_student_episodes_without_skill(run, make_worker, tasks, player):
    seen = []
    script = lambda request: seen.append(request) or player(request)  # noqa: E731
    episodes = run(make_worker(script).run_task(PanelEpisode(temperature=0.4, repeats=2), tasks[0], 1))
    assert [episode.success for episode in episodes] == [True, True]
    assert {request.temperature for request in seen} == {0.4}
    assert not any("Skill" in request.prompt for request in seen)


def test_tasks_do_not_wait_for_each_other(run, make_worker, tasks, player):
    """The first task cannot go on until the second is done."""
    second_is_done = asyncio.Event()

    async def script(request):
        if tasks[0].task_id in request.request_id:
            await second_is_done.wait()
        return player(request)

    async def both():
        worker = make_worker(script)
        first = asyncio.ensure_future(worker.run_task(GroupRollout(2), tasks[0], 1))
        await worker.run_task(GroupRollout(2), tasks[1], 1)
        second_is_done.set()
        return await first

    assert all(episode.success for episode in run(both()))


def test_more_episodes_than_slots_just_queue(run, make_worker, tasks, player):
    """Four slots, six tasks of five episodes: a slot is held by a running episode only."""

    async def all_tasks():
        worker = make_worker(player)
        groups = await asyncio.gather(*(worker.run_task(GroupRollout(5), task, 1) for task in tasks))
        return groups, await worker.progress()

    groups, progress = run(all_tasks())
    assert all(episode.success for group in groups for episode in group)
    assert (progress["tasks"], progress["episodes"], progress["ok"]) == (6, 30, 30)
    assert progress["turns"] == sum(episode.num_turns for group in groups for episode in group)
    assert (progress["episodes_running"], progress["running"]) == (0, {})


def test_no_more_tasks_at_once_than_allowed(run, make_worker, tasks, player):
    at_once = []

    class Count:
        async def run(self, task, context):
            at_once.append(len((await worker.progress())["running"]))
            await asyncio.sleep(0.01)

    worker = make_worker(player, concurrent_tasks=2)
    run(_gather(*(worker.run_task(Count(), task, 1) for task in tasks)))
    assert max(at_once) == 2


def test_progress_names_what_is_running(run, make_worker, tasks, player):
    async def look():
        release = asyncio.Event()

        async def script(request):
            await release.wait()
            return player(request)

        worker = make_worker(script)
        playing = asyncio.ensure_future(worker.run_task(GroupRollout(2), tasks[0], 1))
        await asyncio.sleep(0.1)
        progress = await worker.progress()
        release.set()
        await playing
        return progress

    progress = run(look())
    assert list(progress["running"]) == [tasks[0].task_id]
    assert progress["episodes_running"] == 2


def test_a_failing_program_cancels_its_other_episodes(run, make_worker, tasks, player, sessions):
    async def script(request):
        if request.purpose == "student/1":
            raise ZeroDivisionError
        await asyncio.sleep(3600)

    worker = make_worker(script)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            run(asyncio.wait_for(worker.run_task(GroupRollout(4), tasks[0], 1), 30))
    assert run(worker.progress())["running"] == {}
    # The slots are free again:
    assert all(episode.success for episode in run(make_worker(player).run_task(GroupRollout(4), tasks[0], 1)))


def test_same_seed_same_episodes_whatever_else_runs(run, make_worker, tasks, player):
    """A policy that decides by its seed: a task's episodes do not depend on the tasks beside it."""
    script = lambda request: player(request) if request.seed % 4 else "<think>?</think><action>look</action>"  # noqa: E731

    def actions(groups):
        return [[[turn.action for turn in episode.turns] for episode in group] for group in groups]

    alone = [run(make_worker(script).run_task(GroupRollout(3), task, 5)) for task in tasks[:3]]
    worker = make_worker(script)
    together = run(_gather(*(worker.run_task(GroupRollout(3), task, 5) for task in reversed(tasks[:3]))))
    assert actions(reversed(together)) == actions(alone)


async def _gather(*work):
    return await asyncio.gather(*work)
