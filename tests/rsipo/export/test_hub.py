"""Uploading, against a local stand-in for the hub that speaks its upload protocol over real HTTP."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from rsipo.export.hub import upload
from rsipo.problems import UserError


class StandInHub(BaseHTTPRequestHandler):
    """Takes every file in the commit itself; ``refuse`` is the status it answers to the commit instead."""

    files: dict[str, bytes]
    created: list[dict[str, Any]]
    refuse: int | None

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != "Bearer hf_test":
            self._answer({"error": "Invalid credentials"}, 401)
        elif self.path == "/api/repos/create":
            self.created.append(json.loads(body))
            self._answer({"url": f"http://{self.headers['Host']}/me/model", "id": "me/model"})
        elif self.path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            self._answer({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
        elif self.refuse:
            self._answer({"error": "Forbidden"}, self.refuse)
        else:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._answer({"commitUrl": f"http://{self.headers['Host']}/me/model/commit/abc", "commitOid": "abc"})

    def _answer(self, content: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library reads its environment when it is imported, so its constants are set."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_test")


@pytest.fixture
def hub(online: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[StandInHub]]:
    handler = type("Hub", (StandInHub,), {"files": {}, "created": [], "refuse": None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield handler
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n# Mine\n")
    (folder / "model.safetensors").write_bytes(bytes(range(256)))
    return folder


@pytest.mark.parametrize("private", [True, False])
def test_every_file_arrives(hub: type[StandInHub], folder: Path, private: bool) -> None:
    assert upload(folder, "me/model", private=private).endswith("/me/model/commit/abc")
    assert hub.files == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert hub.created[0]["visibility"] == ("private" if private else "public")
    assert (hub.created[0]["organization"], hub.created[0]["name"]) == ("me", "model")


def test_offline_is_said_and_the_folder_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError) as error:
        upload(folder, "me/model", private=True)
    assert str(error.value) == (
        f"not uploaded to me/model: HF_HUB_OFFLINE is set; unset it. The folder is complete: {folder}; "
        f"`hf upload me/model {folder}` uploads it later"
    )
    assert len(list(folder.iterdir())) == 2


def test_a_missing_token_is_said(folder: Path, online: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(UserError, match="there is no token; run `hf auth login` or set HF_TOKEN"):
        upload(folder, "me/model", private=True)


def test_a_wrong_token_is_said(folder: Path, hub: type[StandInHub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match="refused with status 401; is the token one with write access to it"):
        upload(folder, "me/model", private=True)


def test_a_refused_commit_is_said(folder: Path, hub: type[StandInHub]) -> None:
    hub.refuse = 403
    with pytest.raises(UserError, match="refused with status 403"):
        upload(folder, "me/model", private=True)


def test_no_network_is_said(folder: Path, online: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
    with pytest.raises(UserError, match=r"not uploaded to me/model: no connection to http://127\.0\.0\.1"):
        upload(folder, "me/model", private=True)
