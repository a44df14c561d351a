"""Many small requests, few large searches: caching, coalescing and micro-batching in front of an engine."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from cachetools import LRUCache

from agent_system.retrieval.engine import Engine, Hit
from agent_system.retrieval.metrics import Metrics
from agent_system.retrieval.types import RetrievalTimeout, RetrieverOverloaded

Answer = Sequence[Hit]

_RETRY_AFTER_S = (1, 30)  # least and most
_RECENT = 0.2  # weight of the newest batch in the mean time of a query


class _Key(NamedTuple):
    fingerprint: str
    query: str
    top_k: int


@dataclass(slots=True)
class _Job:
    """One distinct query in flight. ``deadline``: when the last of those who wait for it gives up (monotonic)."""

    key: _Key
    answer: asyncio.Future[Answer]
    deadline: float
    since: float


class Batcher:
    """Answers from the cache, from a query in flight, or by a search in batches on a thread of its own.

    Args:
        engine: encoder, index and corpus. It is called by one thread at a time.
        metrics: where it counts.
        max_batch: queries per search.
        window_s: how long a first query waits for company.
        max_waiting: distinct queries that may wait for a batch; beyond them requests are refused.
        cache_size: answers kept, the least recently used go first; 0 for none.
        prepare_thread: run on the searching thread before all else (thread counts).

    Belongs to one event loop. White space in queries is normalised before anything else, so that equal keys are equal inputs.
    """

    def __init__(
        self,
        engine: Engine,
        metrics: Metrics,
        *,
        max_batch: int = 64,
        window_s: float = 0.003,
        max_waiting: int = 4096,
        cache_size: int = 65536,
        prepare_thread: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._max_batch = max_batch
        self._window_s = window_s
        self._max_waiting = max_waiting
        self._cache: LRUCache[_Key, Answer] = LRUCache(cache_size)
        self._in_flight: dict[_Key, _Job] = {}
        self._waiting: deque[_Job] = deque()
        self._arrival = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "retriever-search", initializer=prepare_thread)
        self._query_seconds = 0.01
        self._loop_task: asyncio.Task[None] | None = None

    async def call(self, function: Callable[[], None]) -> None:
        """Runs something else on the searching thread."""
        await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def start(self) -> None:
        """Begins to search. Call within the event loop."""
        self._loop_task = asyncio.create_task(self._search_forever())

    async def stop(self) -> None:
        """Ends the search; those still waiting are told so. The running batch is finished."""
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.wait([self._loop_task])
        for job in list(self._in_flight.values()):
            self._fail(job, RetrieverOverloaded("the retriever is stopping"))
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def search(self, queries: Sequence[str], top_k: int, timeout_s: float) -> list[Answer]:
        """The hits of each query; none for a query without words.

        Raises:
            RetrieverOverloaded: too many queries wait already; none of these was taken.
            RetrievalTimeout: not answered within ``timeout_s``.
        """
        keys = [_Key(self._engine.fingerprint, " ".join(query.split()), top_k) for query in queries]
        answers: dict[_Key, Answer] = {key: self._cache[key] for key in keys if key in self._cache}
        wanted = {key for key in keys if key.query and key not in answers}
        self._admit(len(wanted - self._in_flight.keys()))
        self._count(keys, cached=answers, wanted=wanted)
        deadline = time.monotonic() + timeout_s
        jobs = {key: self._join(key, deadline) for key in wanted}
        if jobs:
            _, late = await asyncio.wait([job.answer for job in jobs.values()], timeout=timeout_s)
            if late:
                raise RetrievalTimeout(f"{len(late)} of {len(queries)} queries were not answered in {timeout_s:g} s")
            answers |= {key: job.answer.result() for key, job in jobs.items()}
        return [answers.get(key, ()) for key in keys]

    def _admit(self, new: int) -> None:
        if new and len(self._waiting) + new > self._max_waiting:
            low, high = _RETRY_AFTER_S
            seconds = math.ceil(len(self._waiting) * self._query_seconds)
            raise RetrieverOverloaded(f"{len(self._waiting)} queries are waiting", min(max(seconds, low), high))

    def _count(self, keys: list[_Key], *, cached: dict[_Key, Answer], wanted: set[_Key]) -> None:
        new = len(wanted - self._in_flight.keys())
        from_cache = sum(key in cached for key in keys)
        empty = sum(not key.query for key in keys)
        self._metrics.queries.labels("cache").inc(from_cache)
        self._metrics.queries.labels("index").inc(new)
        self._metrics.queries.labels("coalesced").inc(len(keys) - from_cache - empty - new)

    def _join(self, key: _Key, deadline: float) -> _Job:
        job = self._in_flight.get(key)
        if job is None:
            now = time.monotonic()
            job = self._in_flight[key] = _Job(key, asyncio.get_running_loop().create_future(), deadline, now)
            self._waiting.append(job)
            self._arrival.set()
            self._metrics.waiting.set(len(self._waiting))
        job.deadline = max(job.deadline, deadline)
        return job

    async def _search_forever(self) -> None:
        while True:
            await self._arrival.wait()
            if len(self._waiting) < self._max_batch:
                await asyncio.sleep(max(0.0, self._waiting[0].since + self._window_s - time.monotonic()))
            if batch := self._take():
                await self._search(batch)

    def _take(self) -> list[_Job]:
        """The next jobs in order of arrival, without those nobody waits for any more."""
        batch: list[_Job] = []
        now = time.monotonic()
        while self._waiting and len(batch) < self._max_batch:
            job = self._waiting.popleft()
            if job.deadline > now:
                batch.append(job)
            else:
                self._metrics.expired.inc()
                self._fail(job, RetrievalTimeout("nobody waits for this query any more"))
        if not self._waiting:
            self._arrival.clear()
        self._metrics.waiting.set(len(self._waiting))
        return batch

    async def _search(self, batch: list[_Job]) -> None:
        texts = [job.key.query for job in batch]
        top_k = max(job.key.top_k for job in batch)
        start = time.monotonic()
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.search, texts, top_k)
        except (
            Exception
        ) as error:  # whatever a library raises concerns this batch alone, and those who asked hear of it
            for job in batch:
                self._fail(job, error)
            return
        seconds = time.monotonic() - start
        self._query_seconds += _RECENT * (seconds / len(batch) - self._query_seconds)
        self._metrics.batch_size.observe(len(batch))
        self._metrics.batch_seconds.observe(seconds)
        for job, hits in zip(batch, found, strict=True):
            answer = tuple(hits[: job.key.top_k])
            if self._cache.maxsize:
                self._cache[job.key] = answer
            del self._in_flight[job.key]
            job.answer.set_result(answer)
        self._metrics.cached.set(len(self._cache))

    def _fail(self, job: _Job, error: Exception) -> None:
        self._in_flight.pop(job.key, None)
        job.answer.set_exception(error)
        job.answer.exception()  # marks it as seen: those who waited may have gone
