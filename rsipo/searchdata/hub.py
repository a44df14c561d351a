"""Files of a Hugging Face dataset repository, or of a mirror of it: addresses, sizes and checksums."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import httpx

from rsipo.problems import UserError

DEFAULT_ENDPOINT = "https://huggingface.co"
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 5


class TransientError(Exception):
    """The same request may succeed later.

    Attributes:
        retry_after: seconds to wait, where the server says so.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file as the server describes it.

    Attributes:
        name: its path in the repository.
        url: address of exactly this version, where the server names the version.
        size: bytes.
        checksum: ``sha256:…`` (large files) or ``git-sha1:…`` (small ones); None where the server gives none.
        version: the commit, None where the server does not say.
    """

    name: str
    url: str
    size: int
    checksum: str | None
    version: str | None


def endpoint_of(option: str | None) -> str:
    """The server: the option, else ``HF_ENDPOINT``, else the hub."""
    return (option or os.environ.get("HF_ENDPOINT", "").strip() or DEFAULT_ENDPOINT).rstrip("/")


def file_url(endpoint: str, repo: str, revision: str, name: str) -> str:
    """Where a file of a dataset repository is served."""
    return f"{endpoint}/datasets/{repo}/resolve/{revision}/{name}"


def make_client(timeout_s: float) -> httpx.Client:
    """A client that gives up on a silent connection after ``timeout_s`` seconds, with the user's token if there is one."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "rsipo"}
    if token := os.environ.get("HF_TOKEN", "").strip():
        headers["Authorization"] = f"Bearer {token}"
    return httpx.Client(headers=headers, timeout=httpx.Timeout(timeout_s))


def describe(client: httpx.Client, endpoint: str, repo: str, revision: str, name: str) -> RemoteFile:
    """Ask for a file's size and checksum.

    The hub gives those of a large file in the headers of its redirect, those of a small one in the final answer.

    Raises:
        UserError: there is no such file, or it may not be read.
        TransientError: the server is busy or cannot be reached.
    """
    url = httpx.URL(file_url(endpoint, repo, revision, name))
    version = None
    request = client.build_request("HEAD", url)
    for _ in range(_MAX_REDIRECTS):
        try:
            response = client.send(request)
        except httpx.InvalidURL as error:
            raise UserError(f"{url} is no address ({error}); correct --endpoint or HF_ENDPOINT") from error
        except httpx.UnsupportedProtocol as error:
            raise UserError(f"{url}: {error}; correct --endpoint or HF_ENDPOINT") from error
        except httpx.TransportError as error:
            raise TransientError(f"{url}: {error or type(error).__name__}") from error
        version = version or response.headers.get("X-Repo-Commit")
        linked = response.headers.get("X-Linked-Etag")
        if linked or response.status_code not in _REDIRECTS:
            break
        assert response.next_request is not None
        request = response.next_request
    if not linked:
        check_status(response)
    size = response.headers.get("X-Linked-Size") or response.headers.get("Content-Length", "")
    if not size.isdigit():
        raise UserError(f"{url}: the server does not say how large the file is; use another mirror")
    pinned = file_url(endpoint, repo, version, name) if version else str(url)
    return RemoteFile(name, pinned, int(size), _checksum(linked or response.headers.get("ETag", "")), version)


def check_status(response: httpx.Response) -> None:
    """Turn an error status into an exception.

    Raises:
        UserError: asking again would not help.
        TransientError: it might.
    """
    status = response.status_code
    if status < 400 and status not in _REDIRECTS:
        return
    where = f"{response.request.url}: HTTP {status}"
    if status == 429 or status >= 500:
        advice = response.headers.get("Retry-After", "")
        raise TransientError(where, float(advice) if advice.isdigit() else None)
    if status in (401, 403):
        raise UserError(f"{where}; set HF_TOKEN to a token that may read it")
    if status == 404:
        raise UserError(f"{where}; check the repository, the revision and the endpoint")
    raise UserError(where)


def _checksum(etag: str) -> str | None:
    value = etag.strip().removeprefix("W/").strip('"').lower()
    if re.fullmatch(r"[0-9a-f]{64}", value):
        return f"sha256:{value}"
    return f"git-sha1:{value}" if re.fullmatch(r"[0-9a-f]{40}", value) else None
