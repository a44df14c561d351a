"""Search-based question answering behind the environment protocol: one slot.

``SearchEpisode`` is the protocol of an episode without the retrieval; ``SearchEnv`` searches with a blocking call, the
sessions of ``sessions.py`` with an awaited one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agent_system.environments.base import BadTask, EnvironmentFault, Observation, ResetResult, StepResult, Task
from agent_system.environments.search.answers import exact_match
from agent_system.environments.search.index import content_sha256
from agent_system.environments.search.observations import ObservationForm, render
from agent_system.environments.search.projection import answer_of, query_of
from agent_system.retrieval.types import Passage, RetrievalError


class RetrievalFault(EnvironmentFault):
    """The retriever gave no answer. The episode is lost; the policy never sees, and never learns from, an error text."""

    def __init__(self, error: RetrievalError) -> None:
        super().__init__(f"retrieval failed: {type(error).__name__}: {error}")


class SyncRetriever(Protocol):
    """``agent_system.retrieval.client.RetrieverClient``, as far as a blocking slot needs it."""

    def search_sync(self, queries: Sequence[str], top_k: int | None = None) -> list[list[Passage]]: ...


@dataclass(frozen=True, slots=True)
class Query:
    """What an action asks the retriever."""

    text: str


class SearchEpisode:
    """One episode: the question, and the number of turns taken.

    An episode ends with the first answer, or with turn ``max_turns``, whose search is not executed any more. The answer
    in the policy's own last action is scored, never anything that was retrieved.
    """

    def __init__(self, max_turns: int, form: ObservationForm) -> None:
        self._max_turns = max_turns
        self._form = form
        self._answers: Sequence[str] = ()
        self._turn = 0
        self._running = False

    def reset(self, task: Task) -> ResetResult:
        """The question, with nothing retrieved yet. The fingerprint is SHA-256 over the task's hash and the question.

        Raises BadTask when the task's content is not what its hash says.
        """
        question, answers = str(task.extra["question"]), tuple(task.extra["answers"])
        if content_sha256(task.task_type, question, answers) != task.sha256:
            raise BadTask(f"{task.task_id}: question or answers are not those that its hash was made from")
        self._answers, self._turn, self._running = answers, 0, True
        fingerprint = hashlib.sha256(f"{task.sha256}\0{question}".encode()).hexdigest()
        return ResetResult(question, Observation(""), fingerprint)

    def act(self, action: str) -> StepResult | Query:
        """What a projected action leads to: the next state, or first a query, whose passages go to ``observe``.

        An action that neither searches nor answers takes its turn and shows nothing. Raises EnvironmentFault before a
        reset and after the end.
        """
        if not self._running:
            raise EnvironmentFault("no episode is running: reset the environment first")
        self._turn += 1
        answer, query = answer_of(action), query_of(action)
        if answer is not None or self._turn >= self._max_turns:
            self._running = False
            return StepResult(Observation(""), done=True, success=exact_match(answer or "", self._answers))
        if query is None:
            return StepResult(Observation(""), done=False, success=False)
        return Query(query) if query else self.observe(())

    def observe(self, passages: Sequence[Passage]) -> StepResult:
        """The next state after a search."""
        return StepResult(Observation(render(passages, self._form)), done=False, success=False)

    def end(self) -> None:
        """No more steps until the next reset."""
        self._running = False


class SearchEnv:
    """One slot that searches with a blocking call."""

    def __init__(self, retriever: SyncRetriever, top_k: int, max_turns: int, form: ObservationForm) -> None:
        self._retriever = retriever
        self._top_k = top_k
        self._episode = SearchEpisode(max_turns, form)

    def reset(self, task: Task) -> ResetResult:
        """As ``SearchEpisode.reset``."""
        return self._episode.reset(task)

    def step(self, action: str) -> StepResult:
        """Plays a projected action. Raises RetrievalFault when the retriever fails, which ends the episode."""
        outcome = self._episode.act(action)
        if isinstance(outcome, StepResult):
            return outcome
        try:
            (passages,) = self._retriever.search_sync([outcome.text], self._top_k)
        except RetrievalError as error:
            self._episode.end()
            raise RetrievalFault(error) from error
        return self._episode.observe(passages)

    def close(self) -> None:
        """Ends the episode. The retriever's client is shared by the slots of a process and stays."""
        self._episode.end()
