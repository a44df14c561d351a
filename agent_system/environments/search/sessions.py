"""Environment slots for asyncio programs, without processes or threads: an episode here only waits for the retriever."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from agent_system.environments.base import ResetResult, StepResult, Task
from agent_system.environments.client import Session
from agent_system.environments.search.env import RetrievalFault, SearchEpisode
from agent_system.environments.search.observations import ObservationForm
from agent_system.retrieval.types import Passage, RetrievalError


class Retriever(Protocol):
    """``agent_system.retrieval.client.RetrieverClient``, as far as sessions need it."""

    async def search(self, queries: Sequence[str], top_k: int | None = None) -> list[list[Passage]]: ...

    async def aclose(self) -> None: ...


class SearchPool:
    """At most ``slots`` episodes at once, which share one retriever client. Belongs to one event loop.

    The interface is ``EnvPool``'s. There is nothing here that could hang or crash apart from the retriever, whose client
    has its own deadline; so there are no hosts to replace.
    """

    def __init__(self, retriever: Retriever, slots: int, *, top_k: int, max_turns: int, form: ObservationForm) -> None:
        if slots < 1:
            raise ValueError(f"slots is {slots}; an environment pool needs at least 1")
        self._retriever = retriever
        self._top_k = top_k
        self._max_turns = max_turns
        self._form = form
        self._permits = asyncio.Semaphore(slots)

    async def acquire(self) -> Session:
        """A session; waits while all slots are lent."""
        await self._permits.acquire()
        return _SearchSession(self._permits, self._retriever, self._top_k, SearchEpisode(self._max_turns, self._form))

    async def close(self) -> None:
        """Closes the client's connections."""
        await self._retriever.aclose()


class _SearchSession(Session):
    def __init__(self, permits: asyncio.Semaphore, retriever: Retriever, top_k: int, episode: SearchEpisode) -> None:
        super().__init__(permits)
        self._retriever = retriever
        self._top_k = top_k
        self._episode = episode

    async def reset(self, task: Task) -> ResetResult:
        self._check_open()
        return self._episode.reset(task)

    async def step(self, action: str) -> StepResult:
        self._check_open()
        outcome = self._episode.act(action)
        if isinstance(outcome, StepResult):
            return outcome
        try:
            (passages,) = await self._retriever.search([outcome.text], self._top_k)
        except RetrievalError as error:
            self._episode.end()
            raise RetrievalFault(error) from error
        self._check_open()
        return self._episode.observe(passages)

    def _give_back(self) -> None:
        self._episode.end()
