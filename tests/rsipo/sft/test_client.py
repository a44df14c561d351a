"""The external LLM's client against a real server over HTTP: every fault, the budget, and the cache."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from rsipo.problems import UserError
from rsipo.sft.budget import Budget, BudgetSpent, Usage
from rsipo.sft.cache import ResponseCache
from rsipo.sft.client import ChatClient, Refused, usage_of
from rsipo.sft.endpoint import Endpoint

Fault = Callable[[BaseHTTPRequestHandler], None]


def answer(status: int, body: bytes, *, length: int | None = None, **headers: str) -> Fault:
    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(length or len(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return send


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then, for longer than anybody waits; no silence is long enough for a limit on silence."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    for _ in range(1000):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.02)


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.close()
    handler.close_connection = True


def an_hour_ago() -> str:
    return format_datetime(datetime.now(timezone.utc) - timedelta(hours=1), usegmt=True)


class Client:
    """Completes prompts, each call in an event loop and with connections of its own."""

    def __init__(self, endpoint: Endpoint, folder: Path, budget: Callable[[], Budget] = Budget) -> None:
        self.endpoint, self.folder, self.make_budget = endpoint, folder, budget
        self.spent = Usage()

    def __call__(self, *prompts: str) -> list[Any]:
        async def run() -> list[Any]:
            budget = self.make_budget()
            async with ChatClient(self.endpoint, ResponseCache(self.folder), budget) as client:
                found = await asyncio.gather(*map(client.complete, prompts), return_exceptions=True)
            self.spent = budget.spent
            return found

        return asyncio.run(run())


PASSING = {
    "429 with Retry-After": answer(429, b'{"error": "slow down"}', Retry_After="0"),
    "429 with a date": answer(429, b"", Retry_After=an_hour_ago()),
    "429 with nonsense": answer(429, b"", Retry_After="soon"),
    "500": answer(500, b"oops"),
    "503": answer(503, b""),
    "truncated JSON": answer(200, b'{"choices": [{"message": {"content": "{\\"episode_su'),
    "a body cut off": answer(200, b'{"choices": [', length=500),
    "empty choices": answer(200, b'{"choices": []}'),
    "no message": answer(200, b'{"choices": [{"finish_reason": "stop"}]}'),
    "not an object": answer(200, b"[]"),
    "a page of HTML": answer(200, b"<html>gateway</html>"),
    "hanging up": hang_up,
}


@pytest.mark.parametrize("name", PASSING)
def test_a_fault_that_passes_costs_an_attempt(name: str, llm: Any, endpoint: Endpoint, tmp_path: Path) -> None:
    llm.faults = [PASSING[name]]
    client = Client(endpoint, tmp_path)
    (response,) = client("analyse this")
    assert json.loads(response["choices"][0]["message"]["content"])["episode_skill"]
    assert len(llm.bodies) == 2
    assert llm.authorization == {"Bearer secret"}
    assert client("analyse this") == [response]
    assert len(llm.bodies) == 2  # the second time from the disk


def test_a_server_that_drips_is_left_after_the_time_for_a_whole_response(
    llm: Any, endpoint: Endpoint, tmp_path: Path
) -> None:
    llm.faults = [drip, drip]
    client = Client(endpoint.model_copy(update={"timeout": 0.5, "attempts": 2}), tmp_path)
    (error,) = client("analyse this")
    assert isinstance(error, Refused)
    assert "no complete response within 0.5 s" in str(error)
    assert client.spent.estimated  # the server may have charged for what it never sent
    assert client.spent.completion_tokens == 2 * endpoint.max_tokens


@pytest.mark.parametrize("name", ["500", "empty choices", "truncated JSON", "hanging up"])
def test_a_fault_that_stays_is_said_and_not_remembered(name: str, llm: Any, endpoint: Endpoint, tmp_path: Path) -> None:
    llm.faults = [PASSING[name]] * endpoint.attempts
    client = Client(endpoint, tmp_path)
    (error,) = client("analyse this")
    assert isinstance(error, Refused)
    assert len(llm.bodies) == endpoint.attempts
    assert isinstance(client("analyse this")[0], dict)


def test_one_request_may_be_refused_but_a_wrong_key_ends_everything(
    llm: Any, endpoint: Endpoint, tmp_path: Path
) -> None:
    llm.faults = [answer(400, b"too long"), answer(401, b'{"error": "who are you"}')]
    client = Client(endpoint, tmp_path)
    (refused,), (fatal,) = client("a"), client("b")
    assert isinstance(refused, Refused)
    assert str(refused) == "HTTP 400: too long"
    assert isinstance(fatal, UserError)
    assert 'who are you"}; check RSIPO_ANNOTATOR_BASE_URL' in str(fatal)
    assert len(llm.bodies) == 2


def test_retry_after_holds_for_all_requests(llm: Any, endpoint: Endpoint, tmp_path: Path) -> None:
    llm.faults = [answer(429, b"", Retry_After="1")]
    client = Client(endpoint, tmp_path)

    async def run() -> list[Any]:
        async with ChatClient(endpoint, ResponseCache(tmp_path), Budget()) as client:
            first = asyncio.ensure_future(client.complete("a"))
            while not client._not_before:
                await asyncio.sleep(0.005)
            return await asyncio.gather(first, client.complete("b"))

    assert all(isinstance(response, dict) for response in asyncio.run(run()))
    assert len(llm.times) == 3
    assert min(llm.times[1:]) - llm.times[0] >= 0.95
    llm.faults = [answer(429, b"", Retry_After="86400")]
    (error,) = client("c")
    assert isinstance(error, Refused)
    assert "asks to wait 86400 s" in str(error)


def test_no_more_connections_than_asked_for(llm: Any, endpoint: Endpoint, tmp_path: Path) -> None:
    Client(endpoint, tmp_path)(*map(str, range(12)))
    assert 1 <= llm.most_at_once <= endpoint.concurrency
    assert set(llm.prompts.values()) == {1}


def test_the_budget_is_never_exceeded_and_counts_what_was_spent_before(
    llm: Any, endpoint: Endpoint, tmp_path: Path
) -> None:
    small = endpoint.model_copy(update={"max_tokens": 50})
    client = Client(small, tmp_path, lambda: Budget(max_tokens=600))
    prompts = [letter * 150 for letter in "abcdefgh"]
    found = client(*prompts)
    paid = [one for one in found if isinstance(one, dict)]
    assert client.spent == Usage(100 * len(paid), 20 * len(paid))
    assert 480 == client.spent.tokens <= 600
    assert {type(one) for one in found} == {dict, BudgetSpent}
    before = len(llm.bodies)
    spent = sum((usage_of(response) for response in ResponseCache(tmp_path)), Usage())
    assert spent == client.spent
    again = Client(small, tmp_path, lambda: Budget(max_tokens=600, spent=spent))(*prompts)
    assert [type(one) for one in again] == [type(one) for one in found]
    assert len(llm.bodies) == before


def test_a_budget_of_money() -> None:
    budget = Budget(max_cost=0.001, input_price=1.0, output_price=4.0)

    async def run() -> None:
        await budget.reserve(Usage(200, 100))
        await budget.settle(Usage(200, 100), Usage(200, 100))
        with pytest.raises(BudgetSpent, match=r"0\.0006 of 0\.001 in money are spent"):
            await budget.reserve(Usage(200, 100))

    asyncio.run(run())


def test_a_server_without_usage_is_estimated(llm: Any, endpoint: Endpoint, tmp_path: Path) -> None:
    llm.usage = False
    client = Client(endpoint, tmp_path)
    (response,) = client("analyse this")
    assert response["usage"]["estimated"] is True
    assert client.spent.prompt_tokens > 0 < client.spent.completion_tokens


def test_half_a_surrogate_pair_travels(llm: Any, endpoint: Endpoint, tmp_path: Path) -> None:
    assert isinstance(Client(endpoint, tmp_path)("broken \ud83d here")[0], dict)


def test_a_damaged_cache_file_is_asked_again(llm: Any, endpoint: Endpoint, tmp_path: Path) -> None:
    client = Client(endpoint, tmp_path)
    (response,) = client("a")
    (path,) = tmp_path.glob("??/*.json")
    path.write_text(path.read_text()[:-9])
    assert client("a") == [response]
    assert len(llm.bodies) == 2
    assert client("a") == [response]
    assert len(llm.bodies) == 2


VARIABLES = {"RSIPO_ANNOTATOR_BASE_URL": "https://host/v1/chat/completions", "RSIPO_ANNOTATOR_MODEL": "glm-5.2"}


def test_the_endpoint_from_the_environment() -> None:
    extra = {"RSIPO_ANNOTATOR_EXTRA": '{"thinking": {"type": "disabled"}}', "RSIPO_ANNOTATOR_CONCURRENCY": "16"}
    endpoint = Endpoint.from_environment(VARIABLES | extra | {"RSIPO_ANNOTATOR_API_KEY": " key ", "OTHER": "x"})
    assert endpoint.base_url == "https://host/v1"
    assert (endpoint.concurrency, endpoint.extra) == (16, {"thinking": {"type": "disabled"}})
    assert endpoint.api_key.get_secret_value() == "key"
    assert "key" not in repr(endpoint).replace("api_key", "")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RSIPO_ANNOTATOR_BASE_URL": " "}, "RSIPO_ANNOTATOR_BASE_URL is not set"),
        ({"RSIPO_ANNOTATOR_MODEL": ""}, "RSIPO_ANNOTATOR_MODEL is not set"),
        ({"RSIPO_ANNOTATOR_BASE_URL": "host:80"}, "an address such as https://HOST/v1"),
        ({"RSIPO_ANNOTATOR_EXTRA": "{thinking}"}, "RSIPO_ANNOTATOR_EXTRA is not JSON"),
        ({"RSIPO_ANNOTATOR_CONCURRENCY": "many"}, "concurrency"),
        ({"RSIPO_ANNOTATOR_BUDGET_MONEY": "5"}, "needs RSIPO_ANNOTATOR_INPUT_PRICE"),
    ],
)
def test_variables_that_make_no_sense(variables: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Endpoint.from_environment(VARIABLES | variables)
