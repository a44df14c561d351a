"""Fetching one file: in pieces over as many connections as it takes, and checked before it gets its name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type

from agent_system.files import BLOCK_BYTES, sync
from rsipo.problems import UserError
from rsipo.searchdata.files import write_json
from rsipo.searchdata.hub import RemoteFile, TransientError, check_status

#: Longest wait between two attempts, seconds.
MAX_WAIT_SECONDS = 60.0


class PartialFile:
    """A file that grows at its end, with its running checksums.

    Args:
        path: made if needed; what it holds already is read once.
        size: bytes it will have.
        advance: told the bytes of every piece, and a negative number when the file begins anew.
    """

    def __init__(self, path: Path, size: int, advance: Callable[[int], None]) -> None:
        self._file = path.open("ab+")
        self._size = size
        self._advance = advance
        self._start_digests()
        self._file.seek(0)
        self.position = 0
        while block := self._file.read(BLOCK_BYTES):
            self._count(block)

    def append(self, block: bytes) -> None:
        """Write a piece."""
        self._file.write(block)
        self._count(block)

    def restart(self) -> None:
        """Throw away what is there."""
        self._file.truncate(0)
        self._advance(-self.position)
        self.position = 0
        self._start_digests()

    def flush(self) -> None:
        """Hand what was written to the system, so that it survives this process."""
        self._file.flush()

    def close(self) -> None:
        """Close the file; it stays."""
        self._file.close()

    @property
    def sha256(self) -> str:
        """Hex digest of what is there."""
        return self._sha256.hexdigest()

    def agrees(self, checksum: str) -> bool:
        """Whether what is there has this ``sha256:…`` or ``git-sha1:…``."""
        return checksum in (f"sha256:{self.sha256}", f"git-sha1:{self._git.hexdigest()}")

    def _count(self, block: bytes) -> None:
        self._sha256.update(block)
        self._git.update(block)
        self.position += len(block)
        self._advance(len(block))

    def _start_digests(self) -> None:
        self._sha256 = hashlib.sha256()
        self._git = hashlib.sha1(f"blob {self._size}\0".encode(), usedforsecurity=False)


def retrying(
    attempts: int, progress: Callable[[], int] = lambda: 0, say: Callable[[str], None] = lambda _: None
) -> Retrying:
    """Retries of transient errors.

    Args:
        attempts: failures in a row, without progress in between, that end it.
        progress: a number that grows when something was achieved.
        say: told about every failure after which it goes on.
    """
    reached, failures = progress(), 0

    def wait(call: RetryCallState) -> float:  # tenacity asks this first, once per failure
        nonlocal reached, failures
        failures = 1 if progress() > reached else failures + 1
        reached = progress()
        error = call.outcome.exception() if call.outcome else None
        advice = error.retry_after if isinstance(error, TransientError) else None
        return min(MAX_WAIT_SECONDS, 2.0 ** (failures - 1) if advice is None else advice)

    def going_on(call: RetryCallState) -> None:
        error = call.outcome.exception() if call.outcome else None
        say(f"{error}; trying again in {call.upcoming_sleep:.0f} s")

    return Retrying(
        retry=retry_if_exception_type(TransientError),
        stop=lambda _: failures >= attempts,
        wait=wait,
        before_sleep=going_on,
        reraise=True,
    )


def incomplete_path(target: Path) -> Path:
    """Where a file grows. Its name begins with a dot, so that ``part_*`` never matches it."""
    return target.with_name(f".{target.name}.incomplete")


def fetch(
    client: httpx.Client,
    remote: RemoteFile,
    target: Path,
    checksum: str | None,
    *,
    attempts: int,
    advance: Callable[[int], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> str:
    """Fetch ``remote`` to ``target``, going on where an earlier call stopped, and return its sha256.

    Args:
        client: for the requests.
        remote: the file.
        target: its name when it is complete and has the right checksum.
        checksum: what it must be; None takes any file of the right size.
        attempts: failures in a row, without a byte in between, before it is given up; what was fetched stays.
        advance: told the bytes of every piece, fetched now or before.
        say: told about every failed attempt.

    Raises:
        UserError: the file is refused, or it is not what the checksum says.
        TransientError: given up for now.
    """
    part = incomplete_path(target)
    key = {"version": remote.version, "size": remote.size, "checksum": checksum}
    key_file = part.with_name(part.name + ".json")
    if part.exists() and _read_key(key_file) != key:
        part.unlink()  # of another version of the file
    target.parent.mkdir(parents=True, exist_ok=True)
    write_json(key_file, key)
    partial = PartialFile(part, remote.size, advance)
    try:
        for attempt in retrying(attempts, progress=lambda: partial.position, say=say):
            with attempt:
                _continue(client, remote, partial)
    finally:
        partial.close()
    if checksum is not None and not partial.agrees(checksum):
        part.unlink()
        raise UserError(
            f"{remote.url}: what came is not {checksum} but sha256:{partial.sha256}; it was removed, run again"
        )
    sync(part)
    part.replace(target)
    sync(target.parent)
    key_file.unlink(missing_ok=True)
    return partial.sha256


def _continue(client: httpx.Client, remote: RemoteFile, partial: PartialFile) -> None:
    """One connection: append what is missing, or begin anew where the server cannot go on in the middle."""
    start = partial.position
    if start == remote.size:
        return
    headers = {"Range": f"bytes={start}-"} if 0 < start < remote.size else {}
    try:
        with client.stream("GET", remote.url, headers=headers, follow_redirects=True) as response:
            if response.status_code != 416:
                check_status(response)
            goes_on = response.status_code == 206 and response.headers.get("Content-Range", "").startswith(
                f"bytes {start}-"
            )
            if start and not goes_on:
                partial.restart()
            if response.status_code in (206, 416) and not goes_on:
                raise TransientError(f"{remote.url}: the server cannot go on at byte {start:,}")
            for block in response.iter_raw():  # as it comes: nothing is held back when it breaks off
                partial.append(block)
                if partial.position > remote.size:
                    partial.restart()
                    raise UserError(
                        f"{remote.url} is longer than the {remote.size:,} bytes it was said to have; run again"
                    )
    except httpx.TransportError as error:
        raise TransientError(f"{remote.url}: {error or type(error).__name__}") from error
    finally:
        partial.flush()
    if partial.position < remote.size:
        raise TransientError(f"{remote.url}: the connection ended at byte {partial.position:,} of {remote.size:,}")


def _read_key(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
