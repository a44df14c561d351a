"""Every response of the external LLM on disk, by the hash of its request, so that none is paid for twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_system.files import write_atomically


def request_key(body: Mapping[str, Any]) -> str:
    """Hex sha256 of a request's body, the model's name in it; the order of its keys does not matter."""
    content = json.dumps(body, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


class ResponseCache:
    """Responses as the server gave them. A file that cannot be read counts as absent.

    Args:
        folder: made when the first response is stored.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> dict[str, Any] | None:
        """The response to a request, None if there is none."""
        return self._read(self._path(key))

    def put(self, key: str, response: Mapping[str, Any]) -> None:
        """Store a response; it is on disk before this returns."""
        write_atomically(self._path(key), json.dumps(response, ensure_ascii=True, sort_keys=True) + "\n")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All responses, also those to requests that are not made any more."""
        for path in sorted(self._folder.glob("??/*.json")):
            if (response := self._read(path)) is not None:
                yield response

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"

    @staticmethod
    def _read(path: Path) -> dict[str, Any] | None:
        try:
            response = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return response if isinstance(response, dict) and {"choices", "usage"} <= response.keys() else None
