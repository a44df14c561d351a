"""Scripted policies on real questions, through the same episode loop as a trained one, with BM25 over the real passages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_system.environments.base import Task
from agent_system.environments.search.answers import normalise
from agent_system.environments.search.index import load
from agent_system.environments.search.local_retriever import LocalRetriever
from agent_system.environments.search.sessions import SearchPool
from agent_system.environments.search.spec import SearchSpec
from agent_system.rollout.episode import Deadlines
from agent_system.rollout.policy import Policy
from agent_system.rollout.program import GroupRollout, PanelEpisode, RolloutSettings, TaskContext
from agent_system.rollout.prompting import Prompter
from agent_system.rollout.scripted import Request, ScriptedPolicy
from agent_system.rollout.types import Episode

pytestmark = pytest.mark.data

ONCE = PanelEpisode(temperature=0.0)


@pytest.fixture(scope="module")
def tasks(search_data: Path) -> list[Task]:
    """Every twentieth of the 1,229 test questions, of all seven datasets."""
    return load(search_data / "searchr1_raw" / "test.parquet", "test")[::20]


@pytest.fixture(scope="module")
def prompter(tokenizer_folder: str) -> Prompter:
    return Prompter(tokenizer_folder, max_prompt_tokens=1 << 20, max_teacher_prompt_tokens=1 << 20)


@pytest.fixture
def play(prompter: Prompter) -> Callable[..., list[Episode]]:
    """Plays each task once with the script that ``script_of`` makes for it, all at once, in sessions of one pool."""

    def run(tasks, retriever, script_of, form="json", program=ONCE) -> list[Episode]:
        spec = SearchSpec(None, None, (), observation_form=form)
        settings = RolloutSettings(0, max_response_tokens=256, deadlines=Deadlines(turn_s=120, episode_s=300))

        async def one(task: Task, pool: SearchPool) -> list[Episode]:
            client = ScriptedPolicy(prompter, script_of(task))
            context = TaskContext(task, 0, spec, Policy(client, prompter, attempts=1), pool, settings)
            return await program.run(task, context)

        async def all_of_them() -> list[Episode]:
            pool = SearchPool(retriever, 8, top_k=3, max_turns=4, form=form)
            return [
                episode for episodes in await asyncio.gather(*(one(t, pool) for t in tasks)) for episode in episodes
            ]

        return asyncio.run(all_of_them())

    return run


def reader(task: Task) -> Callable[[Request], str]:
    """Searches with the question, then answers with a golden answer if what was retrieved holds one, else gives up."""

    def script(request: Request) -> str:
        if "<information>{" not in request.prompt and "<information>Doc" not in request.prompt:
            return f"<think>I do not know.</think><search>{task.extra['question']}</search>"
        seen = f" {normalise(request.prompt.split('<information>', 2)[2].split('</information>')[0])} "
        found = [answer for answer in task.extra["answers"] if f" {normalise(answer)} " in seen]
        return f"<think>Now I do.</think><answer>{found[0] if found else 'unknown'}</answer>"

    return script


def test_reading_the_passages_scores_what_retrieval_allows(
    play, tasks: list[Task], real_retriever: LocalRetriever, gold: dict[tuple[str, str], set[str]]
) -> None:
    def allows(task: Task) -> bool:
        passages = real_retriever.search_sync([task.extra["question"]])[0]
        text = f" {normalise(' '.join(passage.contents for passage in passages))} "
        return any(f" {normalise(answer)} " in text for answer in task.extra["answers"])

    episodes = play(tasks, real_retriever, reader, form="plain")
    assert all(episode.status == "ok" and episode.num_turns == 2 for episode in episodes)
    wrong = [task.task_id for task, e in zip(tasks, episodes, strict=True) if e.success and not allows(task)]
    missed = [task.task_id for task, e in zip(tasks, episodes, strict=True) if not e.success and allows(task)]
    assert wrong == []
    # An answer may stand across the border of two passages only.
    assert len(missed) <= 2, missed
    score = sum(episode.success for episode in episodes) / len(episodes)
    assert 0.4 < score < 0.9  # single-hop questions mostly, multi-hop ones rarely

    found = [any(p.id in gold[t.task_type, t.extra["question"]] for p in real_retriever.search_sync([t.extra["question"]])[0])
             for t in tasks if t.task_type in ("nq", "triviaqa", "popqa")]  # fmt: skip
    assert sum(found) / len(found) > 0.75


def test_nobody_scores_without_answering(play, tasks: list[Task], real_retriever: LocalRetriever) -> None:
    """Searching for the answer itself four times brings it into every observation, and is worth nothing."""
    episodes = play(
        tasks[:20], real_retriever, lambda task: lambda request: f"<search>{task.extra['answers'][0]}</search>"
    )
    assert {(episode.status, episode.success, episode.num_turns) for episode in episodes} == {("ok", False, 4)}
    assert {turn.action_valid for episode in episodes for turn in episode.turns} == {True}


def test_format_and_truth_are_judged_apart(play, tasks: list[Task], real_retriever: LocalRetriever) -> None:
    def script_of(task: Task) -> Callable[[Request], str]:
        answer = f"<answer>{task.extra['answers'][0]}</answer>"
        return lambda request: f"{answer} and again {answer}" if "This is step 2." in request.prompt else "no tags"

    episodes = play(tasks[:10], real_retriever, script_of)
    assert all(episode.success and episode.invalid_actions == episode.num_turns == 2 for episode in episodes)
    assert [turn.action for turn in episodes[0].turns] == ["", f"<answer>{tasks[0].extra['answers'][0]}</answer>"]


def test_a_lost_retriever_fails_episodes_and_says_why(play, tasks: list[Task], fixed_retriever) -> None:
    episodes = play(tasks[:2], fixed_retriever(failing=True), reader, program=GroupRollout(3))
    assert {(episode.status, episode.num_turns) for episode in episodes} == {("failed", 0)}
    assert all(
        episode.error.startswith("RetrievalFault: retrieval failed: RetrieverUnavailable") for episode in episodes
    )
    assert len({episode.fingerprint for episode in episodes[:3]}) == 1
