"""The answers of ``POST /retrieve`` as a client reads them.

With scores: ``{"result": [[{"document": {"id", "contents", …}, "score": float}, …] per query]}``.
"""

from __future__ import annotations

import math
from typing import Annotated

import httpx
from pydantic import BaseModel, BeforeValidator, ValidationError

from agent_system.retrieval.types import (
    BadRetrievalRequest,
    BadRetrievalResponse,
    Passage,
    RetrievalError,
    RetrieverOverloaded,
    RetrieverUnavailable,
)


class _Document(BaseModel):
    id: Annotated[str, BeforeValidator(str)]
    contents: str


class _Hit(BaseModel):
    document: _Document
    score: float


class _Answer(BaseModel):
    result: list[list[_Hit]]


def read_answer(response: httpx.Response, *, count: int, top_k: int) -> list[list[Passage]]:
    """The passages of each of ``count`` queries.

    Raises:
        BadRetrievalResponse: not in the protocol's form, or another number of queries or passages than asked for.
    """
    try:
        result = _Answer.model_validate_json(response.content).result
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"])) or "body"
        raise BadRetrievalResponse(f"{response.url} answered in another form: {place}: {problem['msg']}") from None
    if len(result) != count:
        raise BadRetrievalResponse(f"{response.url} answered {len(result)} of {count} queries")
    if any(len(hits) > top_k for hits in result):
        raise BadRetrievalResponse(f"{response.url} sent more than the {top_k} passages asked for")
    return [
        [Passage.from_contents(hit.document.id, hit.document.contents, hit.score) for hit in hits] for hits in result
    ]


def refusal(response: httpx.Response) -> RetrievalError:
    """The error that a status other than 200 stands for."""
    status, what = response.status_code, f"{response.url} answered HTTP {response.status_code}: {response.text[:200]}"
    if status in (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE):
        return RetrieverOverloaded(what, _seconds(response.headers.get("Retry-After")))
    if response.is_server_error:
        return RetrieverUnavailable(what)
    return BadRetrievalRequest(what)


def _seconds(value: str | None) -> float | None:
    """``Retry-After`` in seconds. Its other form, a date, is not sent by retrievers and counts as absent."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None
