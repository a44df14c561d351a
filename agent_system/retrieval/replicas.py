"""Which replica of the retriever answers which query."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Sequence

_LONGEST_REST_S = 60.0


class Replicas:
    """Rendezvous hashing over the servers that are up.

    A query always goes to the same server, so that its cache is of use to every rollout of a task; when a server is
    down, only its own queries move.

    Args:
        urls: base addresses or full ``…/retrieve`` addresses.
        rest_s: seconds for which a server that could not be reached gets no query; doubled, up to a minute, each time
            it fails again.
    """

    def __init__(self, urls: Sequence[str], *, rest_s: float = 5.0) -> None:
        if isinstance(urls, str) or not urls:
            raise ValueError("at least one retriever address is needed, as a list")
        self.urls = tuple(dict.fromkeys(_endpoint(url) for url in urls))
        self._rest_s = rest_s
        self._resting_until: dict[str, float] = {}
        self._failures: Counter[str] = Counter()

    def choose(self, query: str) -> str:
        """The address for ``query``: the highest hash of (address, query) among servers that are up, or among all."""
        now = time.monotonic()
        up = [url for url in self.urls if self._resting_until.get(url, now) <= now]
        return max(up or self.urls, key=lambda url: hashlib.sha256(f"{url}\n{query}".encode()).digest())

    def rest(self, url: str) -> None:
        """Send nothing to a server that could not be reached for a while, unless it is the last one."""
        now = time.monotonic()
        if self._resting_until.get(url, now) > now:
            return  # requests that failed together are one failure
        seconds = min(self._rest_s * 2 ** self._failures[url], max(self._rest_s, _LONGEST_REST_S))
        self._failures[url] = min(self._failures[url] + 1, 10)
        self._resting_until[url] = now + seconds

    def answered(self, url: str) -> None:
        """The server is up."""
        self._failures.pop(url, None)
        self._resting_until.pop(url, None)


def _endpoint(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is no address of a retriever; write http://HOST:PORT")
    return url.rstrip("/").removesuffix("/retrieve") + "/retrieve"
