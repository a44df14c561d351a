"""Trajectories of the scripted players, and a server that speaks the OpenAI protocol over HTTP, with faults on demand."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textworld", reason="needs the extra `alfworld`")
pytest.importorskip("torch", reason="needs the extra `cpu`")

from agent_system.environments.alfworld.generator import generate_games
from rsipo.embedded.demonstrations import play
from rsipo.evaluation.episodes import Key, episode_record
from rsipo.record_lines import write_records
from rsipo.searchdata.files import write_json
from rsipo.sft.endpoint import Endpoint
from rsipo.sft.layout import SftFiles
from rsipo.sft.setup import Setup, open_setup
from rsipo.sft.tasks import choose_tasks, training_tasks, write_tasks
from rsipo.sft.trajectories import trajectory_record

Fault = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class FakeLLM:
    """What the server has seen, and what it does next.

    Attributes:
        faults: taken from the front, one per request; where none is left the answer is a good one.
        prompts: how often each prompt was answered well.
        times: of every request, on the monotonic clock.
        most_at_once: largest number of requests in work.
        content: makes the content of a good answer from its number among the prompts.
    """

    url: str = ""
    faults: list[Fault] = field(default_factory=list)
    prompts: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    authorization: set[str | None] = field(default_factory=set)
    most_at_once: int = 0
    content: Callable[[str], str] = lambda prompt: json.dumps(
        {
            "episode_summary": f"It went on for {len(prompt)} letters.",
            "episode_skill": "Look in closed places first, then put it down.",
        }
    )
    usage: bool = True
    running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def reply(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture
def llm() -> Iterator[FakeLLM]:
    state = FakeLLM()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with state.lock:
                state.running += 1
                state.most_at_once = max(state.most_at_once, state.running)
                state.times.append(time.monotonic())
                fault = state.faults.pop(0) if state.faults else None
            try:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                state.bodies.append(body)
                state.authorization.add(self.headers.get("Authorization"))
                if fault is not None:
                    return fault(self)
                prompt = body["messages"][0]["content"]
                state.prompts[prompt] += 1
                message = {"role": "assistant", "content": state.content(prompt)}
                answer: dict[str, Any] = {
                    "model": body["model"],
                    "choices": [{"message": message, "finish_reason": "stop"}],
                }
                if state.usage:
                    answer["usage"] = {"prompt_tokens": 100, "completion_tokens": 20}
                return reply(self, 200, json.dumps(answer).encode())
            except (BrokenPipeError, ConnectionResetError):
                return None  # the client has lost its patience
            finally:
                with state.lock:
                    state.running -= 1

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def endpoint(llm: FakeLLM) -> Endpoint:
    return Endpoint(base_url=llm.url, model="glm", api_key="secret", backoff=0, timeout=20, attempts=3, concurrency=3)


@pytest.fixture(scope="session", autouse=True)
def _work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Caches go to a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RSIPO_WORK", str(tmp_path_factory.mktemp("work")))
        yield


@pytest.fixture(scope="session")
def sft_games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with 18 tiny training games, three of each task type."""
    root = tmp_path_factory.mktemp("sft-games")
    generate_games(root, split="train", count=18, size="tiny", seed=3)
    return root


@pytest.fixture(scope="session")
def setup(sft_games: Path) -> Iterator[Setup]:
    with open_setup("alfworld", None, [f"env.data_root={sft_games}"], rollouts=2) as made:
        yield made


@pytest.fixture(scope="session")
def collected(setup: Setup, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder as the first two stages leave it: six tasks, two trajectories each, played by the scripted player."""
    files = SftFiles(tmp_path_factory.mktemp("collected"))
    available = training_tasks(setup.spec)
    tasks = choose_tasks(available, "alfworld", 6, 0)
    write_tasks(files, tasks, "alfworld", seed=0, available=len(available))
    environment = setup.spec.make()
    records = []
    for task in tasks:
        for rollout in range(2):
            rng = random.Random(f"{task.task_id}/{rollout}")
            episode = play(environment, task, setup.spec.max_turns, rng, noise=0.2)
            records.append(
                trajectory_record(episode_record(Key("train", rollout, task.task_id), task, episode), rollout)
            )
    environment.close()
    write_records(files.trajectories, records)
    # What the evaluation that played them would say of itself.
    identity = {"policy": {"name": "scripted"}, "protocol": {"seeds": [0, 1]}, "versions": {}}
    write_json(files.rollouts / "settings.json", identity)
    return files.root


@pytest.fixture
def files(collected: Path, tmp_path: Path) -> SftFiles:
    """A copy of it."""
    return SftFiles(Path(shutil.copytree(collected, tmp_path / "data")))
