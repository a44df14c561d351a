"""``annotations.jsonl.gz``: for every trajectory the analysis prompt, what the annotator answered, and what was read from it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agent_system.rollout.prompting import Prompter
from rsipo.problems import UserError
from rsipo.prompts import (
    ANALYSIS_PROMPT_VERSION,
    AnalysisPromptTooLong,
    Messages,
    analysis_messages,
    fit_analysis_messages,
)
from rsipo.record_lines import read_records
from rsipo.sft import offline
from rsipo.sft.budget import Budget, BudgetSpent, Usage
from rsipo.sft.cache import ResponseCache
from rsipo.sft.client import ChatClient, Refused, usage_of
from rsipo.sft.endpoint import Endpoint
from rsipo.sft.layout import SftFiles
from rsipo.sft.setup import Setup
from rsipo.sft.trajectories import as_episode
from rsipo.skills import encodable, read_skill

Advance = Callable[[int, int], None]
"""Called with the number done and the number of all."""

_HOPELESS = 20
"""So many requests without a response in a row at the start: something is wrong with the endpoint."""


@dataclass(frozen=True, slots=True)
class Question:
    """A trajectory with the prompt that asks for its analysis.

    Attributes:
        record: the trajectory as it was written, without its steps.
        prompt: the user message.
        prompt_tokens: of the base model's tokenizer, its chat template included.
        shortened: turns were shortened or left out to fit the budget.
        version: names the prompt's template.
        offline_answer: what the templates answer.
    """

    record: Mapping[str, Any]
    prompt: str
    prompt_tokens: int
    shortened: bool
    version: str
    offline_answer: str


@dataclass(frozen=True, slots=True)
class Answer:
    """``text`` of an annotator, and whether it ended by itself."""

    text: str
    finish_reason: str
    usage: Usage | None = None


class Annotator(Protocol):
    """Answers questions; :class:`Refused` where it has no answer."""

    @property
    def name(self) -> str: ...

    @property
    def concurrency(self) -> int: ...

    async def answer(self, question: Question) -> Answer: ...


@dataclass(frozen=True, slots=True)
class OfflineAnnotator:
    """Templates, no LLM."""

    name: str = offline.NAME
    concurrency: int = 1

    async def answer(self, question: Question) -> Answer:
        return Answer(question.offline_answer, "stop")


@dataclass(frozen=True, slots=True)
class ExternalAnnotator:
    """The external LLM behind an endpoint."""

    client: ChatClient
    endpoint: Endpoint

    @property
    def name(self) -> str:
        return self.endpoint.model

    @property
    def concurrency(self) -> int:
        return self.endpoint.concurrency

    async def answer(self, question: Question) -> Answer:
        response = await self.client.complete(question.prompt)
        choice = response["choices"][0]
        return Answer(
            choice["message"].get("content") or "", str(choice.get("finish_reason") or ""), usage_of(response)
        )


def questions(setup: Setup, files: SftFiles) -> Iterator[Question]:
    """The analysis of every trajectory that has a turn.

    Raises:
        UserError: task and outcome alone exceed the prompt's budget.
    """
    skill, policy = setup.settings.skill, setup.settings.policy
    prompter = Prompter(policy.path, 1, 1, policy.chat_template_kwargs)

    def count(messages: Messages) -> int:
        return len(prompter.encode(messages))

    for record in read_records(files.trajectories, "collect the trajectories again (rsipo sft collect)"):
        episode = as_episode(record)
        if not episode.turns:
            continue
        whole = analysis_messages(
            episode, benchmark=setup.benchmark, profile=skill.prompt_profile, repeat_format=skill.repeat_format
        )
        try:
            fitted = fit_analysis_messages(
                episode,
                max_tokens=setup.max_prompt_tokens,
                count_tokens=count,
                benchmark=setup.benchmark,
                profile=skill.prompt_profile,
                repeat_format=skill.repeat_format,
            )
        except AnalysisPromptTooLong as error:
            raise UserError(f"{record['trajectory_id']}: {error}") from error
        facts = {name: value for name, value in record.items() if name != "steps"}
        yield Question(
            facts,
            fitted[0]["content"].encode("utf-8", "replace").decode(),  # a response may hold half a surrogate pair
            count(fitted),
            fitted != whole,
            ANALYSIS_PROMPT_VERSION[skill.prompt_profile],
            offline.annotate(episode, setup.benchmark),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """``answers`` by trajectory id; why the rest has ``none``; and whether the ``budget`` ended the work."""

    answers: dict[str, Answer]
    none: Counter[str]
    budget: str | None


async def ask(annotator: Annotator, asked: list[Question], advance: Advance) -> Outcome:
    """Ask all questions, ``annotator.concurrency`` of them at once.

    Where the budget is spent, what is under way is finished and nothing else is begun.

    Raises:
        UserError: the endpoint refuses everything.
    """
    answers: dict[str, Answer] = {}
    none: Counter[str] = Counter()
    budget: list[str] = []
    waiting = iter(asked)

    async def work() -> None:
        for question in waiting:
            if budget:
                return
            try:
                answers[question.record["trajectory_id"]] = await annotator.answer(question)
            except Refused as error:
                none[str(error)] += 1
                if not answers and sum(none.values()) >= _HOPELESS:
                    raise UserError(
                        f"the first {_HOPELESS} requests had no response, such as: {error}; nothing was lost, "
                        "the same command goes on"
                    ) from error
            except BudgetSpent as error:
                budget.append(str(error))
                return
            advance(len(answers) + sum(none.values()), len(asked))

    await _all(work() for _ in range(annotator.concurrency))
    return Outcome(answers, none, budget[0] if budget else None)


async def ask_endpoint(endpoint: Endpoint, files: SftFiles, asked: list[Question], advance: Advance) -> Outcome:
    """As :func:`ask`, of the external LLM. What earlier runs spent counts towards the budget."""
    cache = ResponseCache(files.responses)
    spent = sum((usage_of(response) for response in cache), Usage())
    budget = Budget(endpoint.budget_tokens, endpoint.budget_money, endpoint.input_price, endpoint.output_price, spent)
    async with ChatClient(endpoint, cache, budget) as client:
        return await ask(ExternalAnnotator(client, endpoint), asked, advance)


def annotation(
    question: Question, answer: Answer, annotator: str, setup: Setup, gold: Mapping[str, list[str]]
) -> dict[str, Any]:
    """The record of one annotation. ``reason`` says why an answer cannot be used; summary and skill are then null.

    Args:
        gold: golden answers by task id; empty except on search.
    """
    record = question.record
    skill = read_skill(
        answer.text,
        finished=answer.finish_reason not in ("length", "content_filter"),
        settings=setup.settings.skill,
        answers=gold.get(str(record["task_id"]), []),
    )
    reason = skill.reason or ("" if skill.summary and encodable(skill.summary) else "no_summary")
    valid = not reason
    return {
        "trajectory_id": record["trajectory_id"],
        "task_id": record["task_id"],
        "task_type": record["task_type"],
        "rollout": record["rollout"],
        "source_success": record["success"],
        "source_num_steps": record["num_steps"],
        "source_final_task_score": record["final_task_score"],
        "annotator": annotator,
        "analysis_prompt_version": question.version,
        "prompt": question.prompt,
        "prompt_tokens": question.prompt_tokens,
        "prompt_shortened": question.shortened,
        "raw_output": answer.text,
        "finish_reason": answer.finish_reason,
        "usage": None
        if answer.usage is None
        else {"prompt_tokens": answer.usage.prompt_tokens, "completion_tokens": answer.usage.completion_tokens},
        "episode_summary": skill.summary if valid else None,
        "episode_skill": skill.text if valid else None,
        "parse_ok": valid,
        "reason": reason,
        "leaks_answer": skill.leaks_answer,
    }


async def _all(work: Iterator[Awaitable[None]]) -> None:
    """Run all at once; the first exception cancels the rest and propagates."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
