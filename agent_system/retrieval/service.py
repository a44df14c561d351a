"""The HTTP service: ``POST /retrieve`` in both public forms, ``/health``, ``/ready``, ``/metrics``.

Request: ``{"queries": [str, …]}`` (Search-R1) or ``{"query": str}`` (verl-agent), each with ``topk`` (absent, null or 0: the
default) and ``return_scores``. Response: ``{"result": [one list per query]}``; its items are corpus rows, or
``{"document": row, "score": float}`` with ``return_scores``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import orjson
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field, ValidationError, model_validator

from agent_system.retrieval.batching import Answer, Batcher
from agent_system.retrieval.engine import Engine
from agent_system.retrieval.metrics import Metrics
from agent_system.retrieval.threads import limit_threads
from agent_system.retrieval.types import FINGERPRINT_HEADER, TIMEOUT_HEADER, RetrievalTimeout, RetrieverOverloaded

log = logging.getLogger("rsipo.retriever")

_MAX_TOP_K, _MAX_QUERIES, _MAX_BODY_BYTES = 100, 4096, 16 << 20
_MAX_QUERY_CHARACTERS = 4096  # an encoder reads far less; the rest is cut off
_STARTING_RETRY_S = 5


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """How the service works.

    Attributes:
        top_k: passages per query where a request does not say.
        threads: of the search.
        max_batch, window_s, max_waiting, cache_size: see ``Batcher``.
        timeout_s: most seconds for a request; a client may ask for fewer by ``X-Request-Timeout``.
    """

    top_k: int = 3
    threads: int = 1
    max_batch: int = 64
    window_s: float = 0.003
    max_waiting: int = 4096
    cache_size: int = 65536
    timeout_s: float = 60.0


class RetrieveRequest(BaseModel):
    """The body of ``POST /retrieve``, in one of its two forms."""

    queries: Annotated[list[str], Field(max_length=_MAX_QUERIES)] | None = None
    query: str | None = None
    topk: Annotated[int, Field(ge=0, le=_MAX_TOP_K)] | None = None
    return_scores: bool = False

    @model_validator(mode="after")
    def _one_form(self) -> RetrieveRequest:
        if (self.queries is None) == (self.query is None):
            raise ValueError('give either "queries" (a list of strings) or "query" (a string)')
        return self

    @property
    def texts(self) -> list[str]:
        """The queries, cut to a sane length."""
        texts = self.queries if self.queries is not None else [self.query or ""]
        return [text[:_MAX_QUERY_CHARACTERS] for text in texts]


class RetrieverService:
    """One engine behind HTTP. ``app`` is the ASGI application; ``failure`` is why it ended by itself, if it did.

    The engine tries itself after the port is open: until then ``/ready`` and ``/retrieve`` answer 503.

    Args:
        engine: what answers.
        settings: limits.
        on_failure: called when the engine turns out not to work.
    """

    def __init__(
        self, engine: Engine, settings: ServiceSettings, on_failure: Callable[[], None] = lambda: None
    ) -> None:
        self.failure: Exception | None = None
        self.metrics = Metrics()
        self._engine = engine
        self._settings = settings
        self._on_failure = on_failure
        self._ready = False
        self._batcher: Batcher | None = None
        self.app = FastAPI(title="RSIPO retriever", lifespan=self._lifespan)
        self.app.post("/retrieve", openapi_extra=_body_schema())(self.retrieve)
        self.app.get("/health")(self.health)
        self.app.get("/ready")(self.ready)
        self.app.get("/metrics")(self.show_metrics)

    @property
    def is_ready(self) -> bool:
        """Whether queries are answered."""
        return self._ready

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        settings = self._settings
        self._batcher = Batcher(
            self._engine,
            self.metrics,
            max_batch=settings.max_batch,
            window_s=settings.window_s,
            max_waiting=settings.max_waiting,
            cache_size=settings.cache_size,
            prepare_thread=partial(limit_threads, settings.threads),
        )
        trial = asyncio.create_task(self._try_engine(self._batcher))
        yield
        self._ready = False
        trial.cancel()
        await self._batcher.stop()

    async def _try_engine(self, batcher: Batcher) -> None:
        start = time.monotonic()
        try:
            await batcher.call(self._engine.check)
        except Exception as error:  # by whatever library: a service that cannot answer must end, and say why
            self.failure = error
            self._on_failure()
            return
        batcher.start()
        self._ready = True
        self.metrics.ready.set(1)
        log.info("ready: %d passages, tried in %.1f s", len(self._engine.corpus), time.monotonic() - start)

    async def retrieve(self, request: Request) -> Response:
        """Search: see the module's documentation for both forms of the request."""
        start = time.monotonic()
        response = await self._answer(request)
        self.metrics.requests.labels(str(response.status_code)).inc()
        self.metrics.request_seconds.observe(time.monotonic() - start)
        return response

    async def health(self) -> dict[str, str]:
        """The process lives."""
        return {"status": "alive"}

    async def ready(self) -> Response:
        """200 with the index' identity when queries are answered, else 503."""
        if not self._ready:
            return _refuse(503, "the index is being tried", retry_after=_STARTING_RETRY_S)
        facts = {"status": "ready", "fingerprint": self._engine.fingerprint, "passages": len(self._engine.corpus)}
        return Response(orjson.dumps(facts), media_type="application/json")

    async def show_metrics(self) -> Response:
        """Counters in Prometheus' text form."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def _answer(self, request: Request) -> Response:
        if not self._ready or self._batcher is None:
            return _refuse(503, "the index is being tried", retry_after=_STARTING_RETRY_S)
        body = await _read(request)
        if body is None:
            return _refuse(413, f"a request has at most {_MAX_BODY_BYTES} bytes")
        try:
            asked = RetrieveRequest.model_validate_json(body)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            return _refuse(422, f"{'.'.join(map(str, problem['loc'])) or 'body'}: {problem['msg']}")
        try:
            answers = await self._batcher.search(
                asked.texts, asked.topk or self._settings.top_k, self._patience(request)
            )
        except RetrieverOverloaded as error:
            return _refuse(503, str(error), retry_after=error.retry_after or _STARTING_RETRY_S)
        except RetrievalTimeout as error:
            return _refuse(504, str(error))
        except Exception as error:  # by whatever library computes; one query must not end the service
            log.exception("a search failed")
            return _refuse(500, f"the search failed: {type(error).__name__}: {error}")
        return Response(
            render(answers, with_scores=asked.return_scores),
            media_type="application/json",
            headers={FINGERPRINT_HEADER: self._engine.fingerprint},
        )

    def _patience(self, request: Request) -> float:
        """Seconds for a request: what the client still waits, at most our own limit."""
        try:
            asked = float(request.headers.get(TIMEOUT_HEADER, "inf"))
        except ValueError:
            asked = math.inf
        return min(asked, self._settings.timeout_s) if asked > 0 else 0.0


def render(answers: list[Answer], *, with_scores: bool) -> bytes:
    """The response's JSON. Rows are put in as they stand in the corpus, without parsing them."""
    lists = []
    for hits in answers:
        if with_scores:
            items = [b'{"document":%b,"score":%b}' % (hit.document, orjson.dumps(hit.score)) for hit in hits]
        else:
            items = [hit.document for hit in hits]
        lists.append(b"[%b]" % b",".join(items))
    return b'{"result":[%b]}' % b",".join(lists)


async def _read(request: Request) -> bytes | None:
    """The body; None when it is too long."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > _MAX_BODY_BYTES:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


def _refuse(status: int, detail: str, *, retry_after: float | None = None) -> Response:
    headers = {} if retry_after is None else {"Retry-After": str(math.ceil(retry_after))}
    return Response(orjson.dumps({"detail": detail}), status, headers, "application/json")


def _body_schema() -> dict:
    schema = RetrieveRequest.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
