"""A small folder of every input, the real slice where it lies beside the project, and a mirror that serves files over HTTP."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from rsipo.searchdata.formats import QARow, write_processed
from rsipo.searchdata.sources import SourceFiles

COMMIT = "c0ffee" * 6 + "c0ff"


@pytest.fixture(scope="session")
def search_data() -> Path:
    """The folder of the real slice."""
    for folder in Path(__file__).resolve().parents:
        if (found := folder.parent / "shared" / "data" / "search").is_dir():
            return found
    pytest.skip("the real search slice is not beside the project (shared/data/search)")


@pytest.fixture
def console(capsys: pytest.CaptureFixture[str]) -> Console:
    return Console(soft_wrap=True, width=120)


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def jsonl():
    return write_jsonl


@pytest.fixture
def files(tmp_path: Path) -> SourceFiles:
    """Thirty rows of every source, about distinct things, and four test questions about others."""
    processed = tmp_path / "data" / "searchR1_processed_direct"
    train = [
        QARow(source, f"what is the {source} number {number}?", (f"{source} answer {number}",))
        for number in range(30)
        for source in ("nq", "hotpotqa")
    ]
    write_processed(processed / "train.parquet", train, "train")
    test = [
        QARow("nq", "who wrote the unwritten book?", ("nobody",)),
        QARow("popqa", "Who is the author of The Silent Harbour?", ("Ann Reed",)),
        QARow("triviaqa", "Which river runs through Elmstead?", ("the Elm",)),
        QARow("bamboogle", "Who was the mother of the first mayor of Elmstead?", ("Joan Hart",)),
    ]
    write_processed(processed / "test.parquet", test, "test")
    for source in ("triviaqa", "2wikimultihopqa", "musique"):
        write_jsonl(
            tmp_path / "flashrag" / source / "train.jsonl",
            [
                {
                    "id": f"train_{n}",
                    "question": f"which {source} thing has number {n}",
                    "golden_answers": [f"thing {n}"],
                }
                for n in range(30)
            ],
        )
    popqa = write_jsonl(
        tmp_path / "trex" / "trex_popqa_relations.jsonl",
        [
            {
                "id": f"trex_popqa_{n}",
                "question": f"What is the capital of Land{n}?",
                "golden_answers": [f"City{n}"],
                "metadata": {"subject": f"Land{n}", "relation": "capital"},
            }
            for n in range(30)
        ],
    )
    return SourceFiles(processed / "train.parquet", processed / "test.parquet", tmp_path / "flashrag", popqa)


@dataclass
class Mirror:
    """A stand-in for the hub: large files by a redirect with their checksum, small ones directly.

    Attributes:
        files: (repository, name) -> content.
        large: whether files are served the way the hub serves large ones.
        ranges: whether the storage can go on in the middle.
        checksums: whether the server names any.
        cut_after: bytes after which each of the next answers breaks off.
        statuses: error statuses of the next requests, with their headers.
        requests: method, path and Range of every request.
    """

    url: str = ""
    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    large: bool = True
    ranges: bool = True
    checksums: bool = True
    cut_after: list[int] = field(default_factory=list)
    statuses: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    def ranges_asked(self, name: str) -> list[str | None]:
        """The Range headers of what was asked of the storage for a file."""
        return [asked for method, path, asked in self.requests if method == "GET" and path == f"/storage/{name}"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def mirror(self) -> Mirror:
        return self.server.mirror  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        self.mirror.requests.append((self.command, self.path, self.headers.get("Range")))
        if self.mirror.statuses:
            status, headers = self.mirror.statuses.pop(0)
            return self._send(status, b"", headers, body)
        name = self.path.rsplit("/", 1)[-1]
        content = next(
            (
                data
                for (repo, file), data in self.mirror.files.items()
                if file == name and (self.path.startswith("/storage/") or f"/datasets/{repo}/resolve/" in self.path)
            ),
            None,
        )
        if content is None:
            return self._send(404, b"", {}, body)
        if self.mirror.large and not self.path.startswith("/storage/"):
            headers = {"Location": f"/storage/{name}", "X-Repo-Commit": COMMIT, "X-Linked-Size": str(len(content))}
            if self.mirror.checksums:
                headers["X-Linked-Etag"] = f'"{hashlib.sha256(content).hexdigest()}"'
            return self._send(302, b"", headers, body)
        headers = {}
        if not self.mirror.large and self.mirror.checksums:
            git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            headers = {"ETag": f'"{git}"', "X-Repo-Commit": COMMIT}
        asked = self.headers.get("Range")
        if asked and self.mirror.ranges:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                return self._send(416, b"", {}, body)
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            return self._send(206, content[start:], headers, body)
        return self._send(200, content, headers, body)

    def _send(self, status: int, content: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body and content:
            if self.mirror.cut_after:
                self.wfile.write(content[: self.mirror.cut_after.pop(0)])
                self.wfile.flush()
                self.close_connection = True
                self.connection.shutdown(2)
            else:
                self.wfile.write(content)


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.mirror = Mirror(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.mirror  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
