from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest

from agent_system.environments.alfworld.projection import INVALID_ACTION
from agent_system.environments.base import EnvironmentFault
from agent_system.rollout.episode import Deadlines

SKILL = "Open the cabinet first, then carry the object where it belongs."


def play(run, context, **arguments):
    return run(context.episode(0, **({"kind": "student", "temperature": 1.0} | arguments)))


def test_the_walkthrough_wins(run, make_context, tasks, player, walkthroughs):
    for task in tasks:
        episode = play(run, make_context(task, player))
        assert (episode.status, episode.success, episode.error) == ("ok", True, "")
        assert [turn.action for turn in episode.turns] == walkthroughs[task.task_id]
        assert all(turn.action_valid and turn.admissible for turn in episode.turns)
        assert episode.fingerprint
        assert episode.instruction


def test_each_turn_holds_its_own_prompt_and_response(run, make_context, tasks, player, prompter, spec):
    episode = play(run, make_context(tasks[0], player))
    for number, turn in enumerate(episode.turns, start=1):
        assert turn.context.step == number
        np.testing.assert_array_equal(turn.generation.prompt_ids, prompter.student_prompt(spec, turn.context))
        assert turn.generation.response_ids[-1] in prompter.stop_token_ids
        assert len(turn.generation.log_probs) == len(turn.generation.response_ids)
        assert turn.context.history == tuple(
            (earlier.context.observation.text, earlier.action) for earlier in episode.turns[: number - 1]
        )


def test_with_a_skill_every_prompt_is_the_teachers(run, make_context, tasks, player, prompter, spec):
    episode = play(run, make_context(tasks[0], player), kind="replay", skill=SKILL)
    assert episode.success
    for turn in episode.turns:
        assert SKILL in prompter.decode(turn.generation.prompt_ids)
        np.testing.assert_array_equal(
            turn.generation.prompt_ids, prompter.teacher_prompt(spec, turn.context, skill=SKILL)
        )


def test_a_response_that_breaks_the_format_plays_its_action_and_pays(run, make_context, tasks, player, walkthroughs):
    """The right action without the think block: played, as in the lineage, but every turn of it is invalid."""
    script = lambda request: player(request).removeprefix("<think>next</think>")  # noqa: E731
    episode = play(run, make_context(tasks[0], script))
    assert (episode.status, episode.success) == ("ok", True)
    assert episode.invalid_actions == episode.num_turns == len(walkthroughs[tasks[0].task_id])
    assert all(turn.admissible for turn in episode.turns)


def test_a_response_without_any_action_changes_nothing_and_counts(run, make_context, tasks):
    episode = play(run, make_context(tasks[0], lambda request: ""))
    assert (episode.status, episode.success) == ("ok", False)
    assert episode.num_turns == episode.invalid_actions == 15
    assert {turn.action for turn in episode.turns} == {INVALID_ACTION}
    assert episode.final_observation == "Nothing happens."
    first, *later = (turn.context.observation.admissible_actions for turn in episode.turns)
    assert all(actions == first for actions in later)


@pytest.mark.parametrize(("strict", "valid"), [(False, True), (True, False)])
def test_an_inadmissible_action_is_invalid_only_by_choice(run, make_context, tasks, spec, strict, valid):
    chosen = dataclasses.replace(spec, inadmissible_is_invalid=strict, max_turns=2)
    context = make_context(tasks[0], lambda request: "<think>x</think><action>fly away</action>", spec=chosen)
    episode = play(run, context)
    assert [(turn.action, turn.action_valid, turn.admissible) for turn in episode.turns] == [
        ("fly away", valid, False)
    ] * 2


def test_a_response_cut_by_the_limit_is_judged_by_its_tags(run, make_context, tasks, player, spec, settings):
    few = dataclasses.replace(settings, max_response_tokens=8)
    episode = play(run, make_context(tasks[0], player, settings=few, spec=dataclasses.replace(spec, max_turns=1)))
    (turn,) = episode.turns
    assert not turn.generation.finished
    assert not turn.action_valid


def test_every_turn_and_episode_has_a_seed_of_its_own(run, make_context, tasks, player):
    seeds = []
    script = lambda request: seeds.append(request.seed) or player(request)  # noqa: E731
    context = make_context(tasks[0], script)
    turns = sum(run(context.episode(index, kind="student", temperature=1.0)).num_turns for index in range(3))
    turns += play(run, context, kind="replay").num_turns
    turns += play(run, make_context(tasks[0], script, step=2)).num_turns
    assert len(seeds) == len(set(seeds)) == turns


def test_the_same_seed_gives_the_same_episode(run, make_context, tasks, player):
    """A policy that chooses by its seed between the walkthrough and nonsense."""
    script = lambda request: player(request) if request.seed % 2 else "<think>?</think><action>look</action>"  # noqa: E731

    def actions(context):
        return [turn.action for turn in play(run, context).turns]

    first = actions(make_context(tasks[1], script))
    assert "look" in first
    assert set(first) != {"look"}
    assert actions(make_context(tasks[1], script)) == first
    assert actions(make_context(tasks[1], script, step=2)) != first


def test_a_client_that_never_answers_is_a_timeout(run, make_context, tasks, player, settings):
    async def script(request):
        if "This is step 2." in request.prompt:
            await asyncio.sleep(3600)
        return player(request)

    hasty = dataclasses.replace(settings, deadlines=Deadlines(turn_s=0.2, episode_s=60))
    episode = play(run, make_context(tasks[0], script, settings=hasty))
    assert (episode.status, episode.error, episode.num_turns) == ("timeout", "turn 2 not over within 0.2 s", 1)


def test_an_episode_that_takes_too_long_is_a_timeout(run, make_context, tasks, settings):
    async def script(request):
        await asyncio.sleep(0.05)
        return "<think>x</think><action>look</action>"

    hasty = dataclasses.replace(settings, deadlines=Deadlines(turn_s=60, episode_s=0.3))
    episode = play(run, make_context(tasks[0], script, settings=hasty))
    assert episode.status == "timeout"
    assert episode.error.startswith("episode not over within 0.3 s")
    assert 0 < episode.num_turns < 15


def test_a_server_lost_for_good_fails_the_episode(run, make_context, tasks):
    def script(request):
        raise ConnectionRefusedError("no server")

    episode = play(run, make_context(tasks[0], script))
    assert episode.status == "failed"
    assert "3 attempts (ConnectionRefusedError: no server)" in episode.error


def test_a_prompt_that_cannot_fit_ends_the_episode_unsuccessful_and_names_the_setting(
    run, make_context, tasks, player, prompter
):
    tight = dataclasses.replace(prompter, max_prompt_tokens=20)
    episode = play(run, make_context(tasks[0], player, prompter=tight))
    assert (episode.status, episode.success, episode.num_turns) == ("ok", False, 0)
    assert "prompt.max_prompt_length=20" in episode.error


def test_a_bad_task_fails_the_episode(run, make_context, tasks, player):
    gone = dataclasses.replace(tasks[0], location=tasks[0].location + ".gone")
    episode = play(run, make_context(gone, player))
    assert episode.status == "failed"
    assert episode.error.startswith("BadTask")
    assert episode.bad_task
    assert episode.fingerprint == ""


def test_no_slot_to_be_had_fails_the_episode(run, make_context, tasks, player):
    class Closed:
        async def acquire(self):
            raise EnvironmentFault("the pool was closed")

    context = make_context(tasks[0], player, sessions=Closed())
    episode = play(run, context)
    assert (episode.status, episode.error) == ("failed", "no environment slot: the pool was closed")


def test_programming_errors_propagate_and_release_the_slot(run, make_context, tasks, player, sessions):
    def script(request):
        raise ZeroDivisionError

    for _ in range(6):  # more often than there are slots
        with pytest.raises(ZeroDivisionError):
            play(run, make_context(tasks[0], script))
    assert play(run, make_context(tasks[0], player)).success
