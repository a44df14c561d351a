"""The client against real servers that answer, refuse, hang, lie or are gone."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agent_system.retrieval.client import RetrieverClient
from agent_system.retrieval.replicas import Replicas
from agent_system.retrieval.types import (
    BadRetrievalRequest,
    BadRetrievalResponse,
    RetrievalError,
    RetrievalTimeout,
    RetrieverOverloaded,
    RetrieverUnavailable,
)

QUESTION = "When was the violin of Cadmoor opened?"


@pytest.fixture
def http_server():
    """``http_server(answer)``: a bare HTTP server; ``answer(body)`` gives (status, headers, body), None hangs up."""
    servers = []

    def start(answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                reply = answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                if reply is None:
                    self.close_connection = True
                    return
                status, headers, body = reply
                self.send_response(status)
                for name, value in {**headers, "Content-Length": len(body)}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_): ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def client_of():
    clients = []

    def make(*urls, **options):
        clients.append(RetrieverClient(urls, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def _echo(body, **headers):
    """What a server answers that has one passage per query, which repeats it."""
    lists = [[{"document": {"id": 0, "contents": f"T\n{query}"}, "score": 1}] for query in body["queries"]]
    return 200, headers, json.dumps({"result": lists}).encode()


@pytest.fixture
def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{probe.getsockname()[1]}"  # bound, but nobody listens


def test_both_ways_of_calling_give_passages(serve, bm25_engine, client_of):
    with serve(bm25_engine) as (url, _):
        client = client_of(f"{url}/retrieve")
        found, empty = client.search_sync([QUESTION, " "], top_k=2)
        assert (found[0].id, found[0].title, found[0].plain_title) == ("18", '"Cadmoor violin"', "Cadmoor violin")
        assert found[0].text.startswith("The violin of Cadmoor was opened in 1818 by the café")
        assert len(found) == 2
        assert empty == []

        async def both():
            results = await asyncio.gather(client.search([QUESTION], 2), client.search([QUESTION]))
            await client.aclose()
            return results

        [two], [three] = asyncio.run(both())
        assert (two, len(three)) == (found, 3)
        assert client.search_sync([]) == []
        assert client.fingerprint == bm25_engine.fingerprint
        with ThreadPoolExecutor(8) as pool:
            assert all(result == [found] for result in pool.map(lambda _: client.search_sync([QUESTION], 2), range(16)))


def test_overload_is_waited_out_as_long_as_the_server_asks(http_server, client_of):
    replies = iter([(503, {"Retry-After": 0.3}, b"full"), (429, {"Retry-After": 0.2}, b""), (500, {}, b"broken"), None])

    def answer(body):
        return next(replies, _echo(body))

    [[passage]] = client_of(http_server(answer)).search_sync(["a"])
    assert passage.text == "a"
    assert next(replies, "used up") == "used up"


def test_attempts_and_time_are_limited(http_server, client_of):
    requests = []

    def full(body):
        requests.append(body)
        return 503, {"Retry-After": 0}, b"full"

    with pytest.raises(RetrieverOverloaded, match="full"):
        client_of(http_server(full), max_attempts=3).search_sync(["a"])
    assert len(requests) == 3
    later = http_server(lambda _: (503, {"Retry-After": 3600}, b"later"))
    with pytest.raises(RetrieverOverloaded) as refusal:
        client_of(later).search_sync(["a"])
    assert refusal.value.retry_after == 3600


def test_nobody_there_and_hanging_servers(http_server, client_of, closed_port):
    with pytest.raises(RetrieverUnavailable, match="ConnectError"):
        client_of(closed_port, timeout_s=1).search_sync(["a"])
    go = threading.Event()
    hanging = http_server(lambda body: go.wait(60) and None)
    with pytest.raises((RetrievalTimeout, RetrieverUnavailable)):
        client_of(hanging, timeout_s=0.5).search_sync(["a"])
    client = client_of(hanging, http_server(_echo), closed_port, timeout_s=90, attempt_timeout_s=5)
    queries = [f"query {number}" for number in range(12)]  # some for each of the three
    assert [passages[0].text for passages in client.search_sync(queries)] == queries
    go.set()


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (422, b'{"detail": "no"}', BadRetrievalRequest),
        (404, b"", BadRetrievalRequest),
        (200, b"<html>", BadRetrievalResponse),
        (200, b'{"result": []}', BadRetrievalResponse),
        (200, b'{"result": [[{"document": {"id": "1"}, "score": 1}]]}', BadRetrievalResponse),
        (200, b'{"result": [[{"id": "1", "contents": "a"}]]}', BadRetrievalResponse),
        (200, b'{"result": [["a", "b", "c", "d"]]}', BadRetrievalResponse),
        (200, b'{"error": "out of memory"}', BadRetrievalResponse),
    ],
)
def test_what_cannot_be_mended_is_not_tried_again(http_server, client_of, status, body, error):
    requests = []

    def answer(request):
        requests.append(request)
        return status, {}, body

    with pytest.raises(error) as raised:
        client_of(http_server(answer)).search_sync(["a"])
    assert isinstance(raised.value, RetrievalError)
    assert "\n" not in str(raised.value)
    assert len(requests) == 1


def test_replicas_with_another_index_are_refused(http_server, client_of):
    headers = {"X-Index-Fingerprint": "a" * 64}
    same = http_server(lambda body: _echo(body, **headers))
    client = client_of(same, same.replace("127.0.0.1", "localhost"), fingerprint="b" * 64)
    with pytest.raises(BadRetrievalResponse, match=r"aaaa.* but bbbb"):
        client.search_sync(["a"])


def test_a_query_stays_with_its_replica_and_moves_only_when_that_is_down(http_server, client_of):
    seen: list[set[str]] = [set(), set(), set()]

    def answers(number):
        def answer(body):
            seen[number].update(body["queries"])
            return _echo(body)

        return answer

    urls = [http_server(answers(number)) for number in range(3)]
    queries = [f"query {number}" for number in range(60)]
    for _ in range(2):
        found = client_of(*urls).search_sync(queries)
        assert [passages[0].text for passages in found] == queries
    assert sum(map(len, seen)) == 60
    assert min(map(len, seen)) > 5
    assert client_of(*reversed(urls)).search_sync(queries) == found
    assert sum(map(len, seen)) == 60


def test_rendezvous_moves_only_the_queries_of_the_lost_replica():
    replicas = Replicas([f"http://host:{port}" for port in range(1, 5)], rest_s=3600)
    before = {f"q{n}": replicas.choose(f"q{n}") for n in range(400)}
    assert all(count > 50 for count in Counter(before.values()).values())
    replicas.rest(before["q0"])
    for query, url in before.items():
        assert (replicas.choose(query) == url) == (url != before["q0"])
    replicas.answered(before["q0"])
    assert {query: replicas.choose(query) for query in before} == before
    for url in replicas.urls:
        replicas.rest(url)
    assert replicas.choose("q0") == before["q0"]  # all are down: better one that may be back than none


@pytest.mark.parametrize("urls", [[], "http://one", ["localhost:8000"]])
def test_bad_addresses(urls):
    with pytest.raises(ValueError, match="address"):
        RetrieverClient(urls)


def test_one_string_is_not_a_list_of_queries(client_of, closed_port):
    with pytest.raises(TypeError):
        client_of(closed_port).search_sync("who")
