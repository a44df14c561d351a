"""Chat completions of an OpenAI-compatible server: one request with its retries, one response that can be read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from rsipo.problems import UserError
from rsipo.sft.budget import Budget, Usage
from rsipo.sft.cache import ResponseCache, request_key
from rsipo.sft.endpoint import PREFIX, Endpoint

_LONGEST_BACKOFF_S = 60.0
_CONNECT_TIMEOUT_S = 15.0
_RETRIED = {408, 409, 425, 429}
_OF_THE_WHOLE = {401, 402, 403, 404, 405}
_BYTES_PER_TOKEN = 3  # of text, where a server does not count
_TEMPLATE_TOKENS = 32  # a server's chat template adds some


class Refused(Exception):
    """This request has no response for now: the server refuses it, or every attempt failed. The message says how."""


class _TryAgain(Exception):
    """A fault that may pass. ``retry_after``: seconds the server asks for; ``billed``: the server may have charged."""

    def __init__(self, message: str, *, retry_after: float | None = None, billed: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.billed = billed


class ChatClient:
    """An asynchronous context.

    Args:
        endpoint: whom to ask, and how patiently.
        cache: a response that is there is not asked for again; a new one is stored before it is returned.
        budget: every request reserves the most it can cost.
    """

    def __init__(self, endpoint: Endpoint, cache: ResponseCache, budget: Budget) -> None:
        self._endpoint, self._cache, self._budget = endpoint, cache, budget
        self._not_before = 0.0  # of the monotonic clock: a server's Retry-After holds for all requests
        key = endpoint.api_key.get_secret_value()
        self._http = httpx.AsyncClient(
            headers={"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})},
            timeout=httpx.Timeout(endpoint.timeout, connect=min(_CONNECT_TIMEOUT_S, endpoint.timeout), pool=None),
            limits=httpx.Limits(max_connections=endpoint.concurrency),
        )
        self.asked = 0
        """Requests sent, attempts counted."""

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    def body(self, prompt: str) -> dict[str, Any]:
        """The request for one prompt, all that the response depends on."""
        endpoint = self._endpoint
        return {
            "model": endpoint.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": endpoint.temperature,
            "max_tokens": endpoint.max_tokens,
            "stream": False,
            **endpoint.extra,
        }

    async def complete(self, prompt: str) -> dict[str, Any]:
        """The server's response: an object with at least one choice that has a message.

        Raises:
            Refused: no such response came.
            BudgetSpent: the request was not sent.
            UserError: the server refuses every request, such as for a wrong key.
        """
        body = self.body(prompt)
        key = request_key(body)
        if (known := self._cache.get(key)) is not None:
            return known
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._endpoint.attempts),
            wait=_Wait(self._endpoint.backoff),
            retry=retry_if_exception_type(_TryAgain),
            reraise=True,
        )
        try:
            response: dict[str, Any] = await retrying(self._attempt, body)
        except _TryAgain as error:
            raise Refused(str(error)) from error
        self._cache.put(key, response)
        return response

    async def _attempt(self, body: Mapping[str, Any]) -> dict[str, Any]:
        while (pause := self._not_before - time.monotonic()) > 0:
            await asyncio.sleep(pause)
        text = "".join(message["content"] for message in body["messages"])
        # No byte-level tokenizer makes more tokens of a text than it has bytes.
        most = Usage(_bytes(text) + _TEMPLATE_TOKENS, self._endpoint.max_tokens)
        likely = Usage(_estimate(text), self._endpoint.max_tokens, estimated=True)
        await self._budget.reserve(most)
        used = Usage()
        try:
            response = _with_usage(await self._send(body), likely.prompt_tokens)
            used = usage_of(response)
            return response
        except _TryAgain as error:
            if error.billed:
                used = likely
            self._note(error.retry_after)
            raise
        finally:
            await self._budget.settle(most, used)

    async def _send(self, body: Mapping[str, Any]) -> dict[str, Any]:
        endpoint = self._endpoint
        self.asked += 1
        try:
            # The limits of httpx are on silence; a server that sends a byte now and then would hold a request for ever.
            reply = await asyncio.wait_for(
                self._http.post(f"{endpoint.base_url}/chat/completions", content=json.dumps(body)), endpoint.timeout
            )
        except asyncio.TimeoutError:
            raise _TryAgain(f"no complete response within {endpoint.timeout:g} s", billed=True) from None
        except httpx.HTTPError as error:
            raise _TryAgain(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        if reply.status_code != httpx.codes.OK:
            raise self._status_error(reply)
        return _read(reply)

    def _status_error(self, reply: httpx.Response) -> Exception:
        status = reply.status_code
        said = " ".join(reply.text.split())[:200]
        message = f"HTTP {status}" + (f": {said}" if said else "")
        if status in _OF_THE_WHOLE:
            return UserError(
                f"{self._endpoint.base_url} answers {message}; check {PREFIX}BASE_URL, {PREFIX}API_KEY and {PREFIX}MODEL"
            )
        if status not in _RETRIED and status < 500:
            return Refused(message)
        asked = _retry_after(reply.headers.get("Retry-After"))
        if asked is not None and asked > self._endpoint.longest_wait:
            return Refused(f"{message}; it asks to wait {asked:.0f} s, which is longer than {PREFIX}LONGEST_WAIT")
        return _TryAgain(message, retry_after=asked)

    def _note(self, retry_after: float | None) -> None:
        if retry_after:
            self._not_before = max(self._not_before, time.monotonic() + retry_after)


def usage_of(response: Mapping[str, Any]) -> Usage:
    """The tokens that a response of :meth:`ChatClient.complete` cost."""
    usage = response["usage"]
    return Usage(usage["prompt_tokens"], usage["completion_tokens"], bool(usage.get("estimated")))


def _with_usage(response: dict[str, Any], prompt_tokens: int) -> dict[str, Any]:
    """The response with its usage; where the server does not say, estimated from its text."""
    usage = response.get("usage")
    names = ("prompt_tokens", "completion_tokens")
    if isinstance(usage, dict) and all(isinstance(usage.get(name), int) and usage[name] >= 0 for name in names):
        return response
    written = _estimate(json.dumps(response["choices"][0]["message"], ensure_ascii=False))
    return response | {"usage": {"prompt_tokens": prompt_tokens, "completion_tokens": written, "estimated": True}}


def _read(reply: httpx.Response) -> dict[str, Any]:
    try:
        response = reply.json()
    except ValueError as error:
        raise _TryAgain(f"the response is not JSON ({error})", billed=True) from error
    try:
        message = response["choices"][0]["message"]
        if not isinstance(message, dict) or not isinstance(message.get("content"), str | None):
            raise TypeError
    except (KeyError, IndexError, TypeError):
        raise _TryAgain("the response holds no choice with a message", billed=True) from None
    return dict(response)


def _retry_after(text: str | None) -> float | None:
    """Seconds from now; the header holds seconds or a date (RFC 9110, 10.2.3). None for any other text."""
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=timezone.utc)
    return max(0.0, (date - datetime.now(timezone.utc)).total_seconds())


class _Wait:
    """Seconds until the next attempt: what the server asks for, else a random time that grows."""

    def __init__(self, backoff_s: float) -> None:
        self._backoff = wait_random_exponential(multiplier=backoff_s, max=_LONGEST_BACKOFF_S)

    def __call__(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = getattr(error, "retry_after", None)
        return self._backoff(state) if asked is None else float(asked)


def _estimate(text: str) -> int:
    return -(-_bytes(text) // _BYTES_PER_TOKEN)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
