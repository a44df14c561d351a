"""The retriever's client: a typed answer or a typed error, within a deadline."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    stop_before_delay,
    wait_random_exponential,
)

from agent_system.retrieval.connections import Connections
from agent_system.retrieval.replicas import Replicas
from agent_system.retrieval.types import Passage, RetrievalTimeout, RetrieverOverloaded, RetrieverUnavailable

_BACKOFF = wait_random_exponential(multiplier=0.2, max=5.0)


class RetrieverClient:
    """Searches on one or more replicas of a retriever, in the Search-R1 request form.

    Args:
        urls: ``http://HOST:PORT`` or ``http://HOST:PORT/retrieve``, one per replica. The same query always goes to the
            same replica, as long as that one is up.
        top_k: passages per query.
        timeout_s: seconds for a whole call, all attempts and waits included.
        attempt_timeout_s: seconds for one attempt; None: all of the time left, or half of it with several replicas.
        max_attempts: most requests for a query. Refused and broken connections and HTTP 429 and 5xx are tried again after
            a growing random wait, or after what the server asks for by ``Retry-After``.
        fingerprint: the index' identity; None accepts the first one seen, and from then on no other.

    ``search`` and ``search_sync`` may be called from many tasks and threads at once. Connections are made at the first
    call; ``aclose`` (in the loop that searched) and ``close`` end them.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        top_k: int = 3,
        timeout_s: float = 30,
        attempt_timeout_s: float | None = None,
        max_attempts: int = 10,
        fingerprint: str | None = None,
    ) -> None:
        if min(top_k, max_attempts) < 1 or min(timeout_s, attempt_timeout_s or timeout_s) <= 0:
            raise ValueError("top_k, max_attempts and the timeouts must be positive")
        self._replicas = Replicas(urls)
        self._top_k = top_k
        self._timeout_s = timeout_s
        self._attempt_timeout_s = attempt_timeout_s
        self._max_attempts = max_attempts
        self._connections = Connections(fingerprint)
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    @property
    def fingerprint(self) -> str | None:
        """The identity of the index that answers; None before the first answer, or if the server does not tell."""
        return self._connections.fingerprint

    async def search(self, queries: Sequence[str], top_k: int | None = None) -> list[list[Passage]]:
        """The best passages of each query, best first; none for an empty query.

        Raises:
            RetrieverUnavailable, RetrieverOverloaded: no replica served the request within the attempts.
            RetrievalTimeout: ``timeout_s`` passed.
            BadRetrievalRequest, BadRetrievalResponse: the server refused it; the answer is not what the protocol says.
        """
        if isinstance(queries, str):
            raise TypeError("queries must be a list of strings, not one string")
        end = time.monotonic() + self._timeout_s
        call = _Call(self._connections, self._replicas, queries, top_k or self._top_k, end, self._attempt_timeout_s)
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._max_attempts) | stop_before_delay(self._timeout_s),
            wait=_wait,
            retry=retry_if_exception_type(RetrieverUnavailable),
            reraise=True,
        )
        try:
            with anyio.fail_after(self._timeout_s):
                await retrying(call.ask_missing)
        except TimeoutError:
            servers = ", ".join(self._replicas.urls)
            raise RetrievalTimeout(f"no answer from {servers} in {self._timeout_s:g} s") from None
        return call.answers

    def search_sync(self, queries: Sequence[str], top_k: int | None = None) -> list[list[Passage]]:
        """``search`` for callers without an event loop, with the same errors."""
        with self._lock:
            if self._portal is None:
                self._portal = self._stack.enter_context(start_blocking_portal())
        return self._portal.call(self.search, queries, top_k)

    async def aclose(self) -> None:
        """Ends the connections that were made in the running event loop."""
        await self._connections.close()

    def close(self) -> None:
        """Ends the connections and the thread of ``search_sync``."""
        with self._lock:
            if self._portal is not None:
                self._portal.call(self.aclose)
                self._portal = None
                self._stack.close()


class _Call:
    """One call of ``search``: what has been answered, and what still has to be asked."""

    def __init__(
        self,
        connections: Connections,
        replicas: Replicas,
        queries: Sequence[str],
        top_k: int,
        end: float,
        attempt_timeout_s: float | None,
    ) -> None:
        self._connections = connections
        self._replicas = replicas
        self._queries = queries
        self._top_k = top_k
        self._end = end
        self._attempt_timeout_s = attempt_timeout_s
        self.answers: list[list[Passage]] = [[] for _ in queries]
        self._missing = [position for position, query in enumerate(queries) if query.strip()]

    async def ask_missing(self) -> None:
        """Asks every replica at once for its share of the missing answers; raises the gravest error of the round."""
        shares: defaultdict[str, list[int]] = defaultdict(list)
        for position in self._missing:
            shares[self._replicas.choose(self._queries[position])].append(position)
        outcomes = await asyncio.gather(*(self._ask(*share) for share in shares.items()), return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if errors:
            raise max(errors, key=_gravity)

    async def _ask(self, url: str, positions: list[int]) -> None:
        queries = [self._queries[position] for position in positions]
        left = max(self._end - time.monotonic(), 0.001)
        # With another replica to turn to, one that hangs may take only half of the time left.
        share = left / 2 if len(self._replicas.urls) > 1 else left
        patience = min(left, self._attempt_timeout_s or share)
        try:
            answers = await self._connections.retrieve(url, queries, self._top_k, patience_s=patience, pool_s=left)
        except RetrieverUnavailable as error:
            if not isinstance(error, RetrieverOverloaded):
                self._replicas.rest(url)
            raise
        self._replicas.answered(url)
        for position, passages in zip(positions, answers, strict=True):
            self.answers[position] = passages
            self._missing.remove(position)


def _gravity(error: BaseException) -> tuple[bool, float]:
    """Errors that no further attempt can mend come first, then the longest wait a server asked for."""
    return not isinstance(error, RetrieverUnavailable), getattr(error, "retry_after", None) or 0.0


def _wait(state: RetryCallState) -> float:
    """Seconds until the next attempt: the random back-off, and no less than the server asked for."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after if isinstance(error, RetrieverOverloaded) else None
    return max(_BACKOFF(state), asked or 0.0)
