"""The service over real HTTP."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from agent_system.retrieval.types import FINGERPRINT_HEADER, IndexProblem

QUESTION = "When was the violin of Cadmoor opened?"


@pytest.fixture
def url(serve, bm25_engine):
    with serve(bm25_engine) as (url, _):
        yield url


def _get(url):
    return httpx.get(url, timeout=60)


def _post(url, body, **options):
    content = body if isinstance(body, (str, bytes)) else json.dumps(body)
    return httpx.post(f"{url}/retrieve", content=content, timeout=60, **options)


def test_search_r1_form(url, corpus):
    response = _post(url, {"queries": [QUESTION, "", "zebra"], "topk": 2, "return_scores": True})
    assert response.headers[FINGERPRINT_HEADER]
    found, empty, unknown = response.json()["result"]
    assert found[0]["document"] == json.loads(corpus.row(18))
    assert len(found) == 2
    assert found[0]["score"] >= found[1]["score"] > 0
    assert empty == unknown == []


def test_verl_agent_form(url, corpus):
    body = {"query": QUESTION, "return_scores": True}
    response = _post(url, body)
    assert response.json() == _post(url, {"queries": [QUESTION], "topk": 0, "return_scores": True}).json()
    [hits] = response.json()["result"]
    assert len(hits) == 3
    [rows] = _post(url, {"query": QUESTION, "topk": 1}).json()["result"]
    assert rows == [json.loads(corpus.row(18))]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "not json",
        "[]",
        "{}",
        {"query": "a", "queries": ["a"]},
        {"query": None},
        {"query": 7},
        '{"query": "\\ud800"}',
        '{"queries": ["a", NaN]}',
        {"queries": "a"},
        {"queries": ["a"] * 5000},
        {"query": "a", "topk": -1},
        {"query": "a", "topk": 101},
        {"query": "a", "topk": "many"},
        b'{"query": "\xff"}',
    ],
)
def test_malformed_requests_are_422_in_one_line(url, body):
    response = _post(url, body)
    assert response.status_code == 422
    assert list(response.json()) == ["detail"]
    assert len(response.text) < 300


def test_sizes_are_bounded(url):
    assert _post(url, b" " * (17 << 20)).status_code == 413
    long = _post(url, {"query": f"{QUESTION} {'word ' * 100_000}", "topk": 100})
    assert long.status_code == 200
    assert 0 < len(long.json()["result"][0]) <= 64


def test_health_ready_and_metrics(url):
    _post(url, {"queries": [QUESTION, QUESTION]})
    _post(url, {"query": QUESTION})
    _post(url, "broken")
    assert _get(f"{url}/health").json() == {"status": "alive"}
    ready = _get(f"{url}/ready")
    assert (ready.status_code, ready.json()["passages"]) == (200, 64)
    metrics = _get(f"{url}/metrics").text.splitlines()
    assert 'retriever_requests_total{status="200"} 2.0' in metrics
    assert 'retriever_requests_total{status="422"} 1.0' in metrics
    for source in ("index", "coalesced", "cache"):
        assert f'retriever_queries_total{{source="{source}"}} 1.0' in metrics


def test_overload_is_503_with_advice_and_deadline_504(serve, held_engine):
    with serve(held_engine, max_waiting=1, window_s=0) as (url, _), ThreadPoolExecutor(4) as pool:
        first = pool.submit(_post, url, {"query": "first"})
        assert held_engine.started.acquire(timeout=60)
        late = _post(url, {"query": "second"}, headers={"X-Request-Timeout": "0.05"})
        assert late.status_code == 504
        full = _post(url, {"query": "third"})
        assert full.status_code == 503
        assert int(full.headers["Retry-After"]) >= 1
        held_engine.go.set()
        assert first.result(60).status_code == 200
        assert _post(url, {"query": "third"}, headers={"X-Request-Timeout": "nonsense"}).status_code == 200
        failed = _post(url, {"query": "fail"})
        assert (failed.status_code, failed.json()["detail"]) == (
            500,
            "the search failed: FloatingPointError: no such luck",
        )
        assert _post(url, {"query": "fourth"}).status_code == 200


def test_until_the_index_has_been_tried_nothing_is_answered(serve, held_engine):
    held_engine.check = lambda: held_engine.go.wait(60)
    with serve(held_engine, wait=False) as (url, service):
        assert _get(f"{url}/health").status_code == 200
        for response in (_get(f"{url}/ready"), _post(url, {"query": "a"})):
            assert response.status_code == 503
            assert response.headers["Retry-After"]
        held_engine.go.set()
        while not service.is_ready:
            time.sleep(0.02)
        assert _post(url, {"query": "a"}).status_code == 200


def test_an_index_that_fails_its_trial_ends_the_service(serve, held_engine):
    def check():
        raise IndexProblem("of another corpus")

    held_engine.check = check
    with serve(held_engine, wait=False) as (_, service):
        while service.failure is None:
            time.sleep(0.02)
        assert str(service.failure) == "of another corpus"
