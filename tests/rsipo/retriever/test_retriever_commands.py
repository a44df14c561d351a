"""The retriever as a process: started, refused, drained, killed, and measured."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from agent_system.retrieval.build import BuildRequest, build_index
from agent_system.retrieval.client import RetrieverClient
from agent_system.retrieval.types import RetrievalError
from rsipo.cli import app
from rsipo.problems import UserError
from rsipo.retriever.bench import make_workloads, read_queries
from rsipo.retriever.process import RetrieverProcess

COLOURS = ("red", "green", "blue", "black", "white", "brown", "violet", "golden", "silver", "yellow")


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    rows = [
        {"id": str(n), "contents": f'"The {colour} house"\nIts doors are {colour}.'} for n, colour in enumerate(COLOURS)
    ]
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index(folder / "index", BuildRequest(corpus, "bm25"))
    return folder / "index"


def test_sigterm_lets_requests_finish_and_sigkill_is_a_typed_error(index):
    with RetrieverProcess(index, ["--window-ms", "1500"]) as server:
        client = RetrieverClient([server.url], timeout_s=30)
        [[passage, *_]] = client.search_sync(["golden doors"])
        assert passage.plain_title == "The golden house"
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.search_sync, ["silver doors"])
            while "retriever_waiting 1.0" not in httpx.get(f"{server.url}/metrics", timeout=60).text:
                assert not waiting.done()
            server.process.send_signal(signal.SIGTERM)
            assert waiting.result(60)[0][0].plain_title == "The silver house"
        assert server.process.wait(60) == 0
        client.close()
    with RetrieverProcess(index, ["--window-ms", "60000"]) as server:
        client = RetrieverClient([server.url], timeout_s=3)
        threading.Timer(0.5, server.process.kill).start()
        with pytest.raises(RetrievalError):
            client.search_sync(["red doors"])
        client.close()


def test_parts_that_do_not_fit_are_refused_in_one_line(index, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    manifest = json.loads((index / "manifest.json").read_text())
    manifest["corpus"]["path"] = str(tmp_path / "gone.jsonl")
    (broken / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"did not start: rsipo: .*gone\.jsonl is missing"), RetrieverProcess(broken):
        pass


def test_bench_prints_both_servers(index, tmp_path):
    log, out = tmp_path / "queries.jsonl", tmp_path / "numbers.json"
    log.write_text("".join(json.dumps({"query": f"{colour} doors"}) + "\n" for colour in COLOURS[:4] * 2))
    words = [
        "retriever",
        "bench",
        str(index),
        "--queries",
        str(log),
        "--clients",
        "4",
        "--requests",
        "8",
        "--out",
        str(out),
    ]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert "equal answers: 4 of 4 queries" in result.output
    rows = {(row["design"], row["workload"]): row for row in json.loads(out.read_text())}
    assert len(rows) == 6
    assert rows["one by one", "log"]["searched"] == 8
    assert rows["rsipo", "log"]["searched"] == 4
    assert rows["rsipo", "8 rollouts"]["searched"] == 1


def test_workloads(tmp_path):
    workloads = make_workloads(["a", "b", "a", "c", "a"], 16)
    assert sorted(workloads["no repeats"]) == ["a", "b", "c"]
    assert workloads["log"] == ["a", "b", "a", "c", "a"]
    assert len(workloads["8 rollouts"]) == 16
    with pytest.raises(UserError, match="no query log"):
        read_queries(tmp_path / "nowhere.jsonl")


def test_a_taken_port_is_one_line(index):
    with RetrieverProcess(index) as server:
        port = server.url.rsplit(":", 1)[1]
        result = CliRunner().invoke(app, ["retriever", "serve", str(index), "--port", port])
    assert isinstance(result.exception, UserError)
    assert f"port {port}" in str(result.exception)


def test_a_helper_ends_with_its_parent():
    steps = ("import time", "from rsipo.retriever.parent import end_with_parent", "end_with_parent()")
    helper = "; ".join([*steps, "print(1, flush=True)", "time.sleep(300)"])
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {helper!r}]).wait(300)"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"1\n"
        process.kill()
        assert process.stdout.read() == b""  # until the helper has closed it, too
