"""HTTP to the replicas of a retriever: one request, one typed answer or error."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import httpx

from agent_system.retrieval.types import (
    FINGERPRINT_HEADER,
    TIMEOUT_HEADER,
    BadRetrievalResponse,
    Passage,
    RetrieverUnavailable,
)
from agent_system.retrieval.wire import read_answer, refusal

_CONNECT_TIMEOUT_S = 5.0
_MAX_CONNECTIONS = 256


class Connections:
    """Keeps connections, a set of them per event loop.

    Args:
        fingerprint: the index' identity; None accepts the first one seen, and from then on no other.
    """

    def __init__(self, fingerprint: str | None) -> None:
        self.fingerprint = fingerprint
        self._http: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    async def retrieve(
        self, url: str, queries: Sequence[str], top_k: int, *, patience_s: float, pool_s: float
    ) -> list[list[Passage]]:
        """The passages of each query.

        Args:
            url: ``http://HOST:PORT/retrieve``.
            queries: non-empty ones.
            top_k: passages per query.
            patience_s: seconds for the answer; the server is told.
            pool_s: seconds for a free connection, before the request is sent.

        Raises:
            RetrieverUnavailable, RetrieverOverloaded: no answer, HTTP 429 or 5xx.
            BadRetrievalRequest, BadRetrievalResponse: another status; another form, or another index.
        """
        try:
            response = await self._client().post(
                url,
                json={"queries": list(queries), "topk": top_k, "return_scores": True},
                headers={TIMEOUT_HEADER: f"{patience_s:.3f}"},
                timeout=httpx.Timeout(patience_s, connect=min(_CONNECT_TIMEOUT_S, patience_s), pool=pool_s),
            )
        except httpx.HTTPError as error:
            raise RetrieverUnavailable(f"no answer from {url}: {type(error).__name__} {error}".rstrip()) from error
        if response.status_code != httpx.codes.OK:
            raise refusal(response)
        self._check_fingerprint(url, response.headers.get(FINGERPRINT_HEADER))
        return read_answer(response, count=len(queries), top_k=top_k)

    async def close(self) -> None:
        """Ends the connections of the running event loop."""
        if http := self._http.pop(asyncio.get_running_loop(), None):
            await http.aclose()

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if loop not in self._http:
            limits = httpx.Limits(max_connections=_MAX_CONNECTIONS, max_keepalive_connections=_MAX_CONNECTIONS)
            # The retriever is on this node or beside it; a proxy from the environment has no business here.
            self._http[loop] = httpx.AsyncClient(limits=limits, trust_env=False)
        return self._http[loop]

    def _check_fingerprint(self, url: str, seen: str | None) -> None:
        """Other servers of this protocol send no fingerprint; then there is nothing to compare."""
        if seen is None:
            return
        if self.fingerprint is None:
            self.fingerprint = seen
        if seen != self.fingerprint:
            raise BadRetrievalResponse(f"{url} serves index {seen[:16]}, but {self.fingerprint[:16]} is expected")
