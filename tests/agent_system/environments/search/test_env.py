"""The turn protocol of an episode, in a blocking slot and in an awaited one."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib

import pytest

from agent_system.environments.base import BadTask, EnvironmentFault
from agent_system.environments.search.env import RetrievalFault, SearchEnv
from agent_system.environments.search.sessions import SearchPool
from agent_system.retrieval.types import Passage

PASSAGE = Passage.from_contents("1", "Emma\nEmma is by <answer>Jane Austen</answer>.", 1.0)
SEARCH = "<search>Emma</search>"


def environment(retriever, max_turns=4):
    return SearchEnv(retriever, 3, max_turns, "plain")


def test_a_reset_shows_the_question_and_proves_it(fixed_retriever, make_task) -> None:
    task = make_task()
    first, again = environment(fixed_retriever()).reset(task), environment(fixed_retriever()).reset(task)
    assert (first.instruction, first.observation.text) == ("Who wrote Emma?", "")
    assert first == again
    assert first.fingerprint == hashlib.sha256(f"{task.sha256}\0Who wrote Emma?".encode()).hexdigest()
    others = [make_task("Who read Emma?"), make_task(answers=["Austen"]), make_task(source="popqa")]
    assert len({first.fingerprint, *(environment(fixed_retriever()).reset(t).fingerprint for t in others)}) == 4


def test_a_changed_task_is_refused(fixed_retriever, make_task) -> None:
    task = make_task()
    changed = dataclasses.replace(task, extra=task.extra | {"answers": ("Jane",)})
    with pytest.raises(BadTask, match="nq/test_0"):
        environment(fixed_retriever()).reset(changed)


def test_search_then_answer(fixed_retriever, make_task) -> None:
    retriever = fixed_retriever([PASSAGE])
    env = environment(retriever)
    env.reset(make_task())
    seen = env.step(SEARCH)
    assert (seen.done, seen.success, seen.admissible) == (False, False, True)
    assert "Emma is by" in seen.observation.text
    end = env.step("<answer>the Jane Austen!</answer>")
    assert (end.done, end.success, end.observation.text) == (True, True, "")
    assert retriever.queries == ["Emma"]
    with pytest.raises(EnvironmentFault, match="no episode is running"):
        env.step(SEARCH)


@pytest.mark.parametrize("answer", ["Austen", "", "Jane Austen wrote it"])
def test_a_wrong_answer_ends_the_episode(fixed_retriever, make_task, answer) -> None:
    env = environment(fixed_retriever())
    env.reset(make_task())
    end = env.step(f"<answer>{answer}</answer>")
    assert (end.done, end.success) == (True, False)


def test_the_search_of_the_last_turn_is_not_executed_and_retrieved_text_never_scores(
    fixed_retriever, make_task
) -> None:
    """The lineage scores the last answer block of the whole transcript, and the passage has one with the gold answer."""
    retriever = fixed_retriever([PASSAGE])
    env = environment(retriever)
    env.reset(make_task())
    steps = [env.step(SEARCH) for _ in range(4)]
    assert [step.done for step in steps] == [False, False, False, True]
    assert "<answer>Jane Austen</answer>" in steps[2].observation.text
    assert not any(step.success for step in steps)
    assert (len(retriever.queries), steps[3].observation.text) == (3, "")


def test_an_action_that_is_none_takes_its_turn_and_an_empty_query_asks_nothing(fixed_retriever, make_task) -> None:
    retriever = fixed_retriever([PASSAGE])
    env = environment(retriever, max_turns=3)
    env.reset(make_task())
    assert env.step("").observation.text == ""
    assert env.step("<search></search>").observation.text == "<information>No search results found.</information>"
    end = env.step("")
    assert (end.done, end.success, retriever.queries) == (True, False, [])


def test_an_answer_inside_a_query_is_the_policys_own(fixed_retriever, make_task) -> None:
    env = environment(fixed_retriever())
    env.reset(make_task())
    assert env.step("<search>x <answer>Jane Austen</answer></search>").success


def test_a_failed_retrieval_is_a_fault_and_ends_the_episode(fixed_retriever, make_task) -> None:
    retriever = fixed_retriever([PASSAGE], failing=True)
    env = environment(retriever)
    env.reset(make_task())
    with pytest.raises(RetrievalFault, match="retrieval failed: RetrieverUnavailable: no answer from http"):
        env.step(SEARCH)
    with pytest.raises(EnvironmentFault, match="no episode is running"):
        env.step(SEARCH)
    retriever.failing = False
    env.reset(make_task())
    assert not env.step(SEARCH).done


def test_sessions_follow_the_same_protocol(fixed_retriever, make_task) -> None:
    async def play() -> None:
        retriever = fixed_retriever([PASSAGE])
        pool = SearchPool(retriever, 2, top_k=1, max_turns=4, form="plain")
        first, second = await pool.acquire(), await pool.acquire()
        waiting = asyncio.ensure_future(pool.acquire())
        start, _ = await asyncio.gather(first.reset(make_task()), second.reset(make_task("Who read Emma?")))
        assert start.instruction == "Who wrote Emma?"
        seen = await asyncio.gather(first.step(SEARCH), second.step(SEARCH))
        assert all("Emma is by" in step.observation.text for step in seen)
        assert (await first.step("<answer>Jane Austen</answer>")).success
        retriever.failing = True
        with pytest.raises(RetrievalFault):
            await second.step(SEARCH)
        assert not waiting.done()
        first.release()
        third = await waiting
        with pytest.raises(EnvironmentFault, match="released"):
            await first.step(SEARCH)
        with pytest.raises(EnvironmentFault, match="no episode is running"):
            await third.step(SEARCH)
        await pool.close()

    asyncio.run(play())
