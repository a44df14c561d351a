"""A retriever that lives as long as the program that needs it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import httpx

from rsipo.problems import UserError

_POLL_S = 0.1
_STOP_S = 40.0


class RetrieverProcess:
    """``rsipo retriever serve`` on a free port of the loopback address, ready when the ``with`` block begins.

    It ends with the block, or with this process, however that ends.

    Args:
        index: the index folder.
        options: further words for the command.
        module: what Python runs, with the words before ``options``.
        log: file for its output; None: a temporary one, quoted when the start fails.
        start_deadline_s: seconds until it must be ready.

    Raises (on entering):
        UserError: it ended, or was not ready in time; with the last line it printed.
    """

    def __init__(
        self,
        index: Path,
        options: Sequence[str] = (),
        *,
        module: Sequence[str] = ("rsipo.cli", "retriever", "serve"),
        log: Path | None = None,
        start_deadline_s: float = 600.0,
    ) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="rsipo-retriever-")
        self._address = Path(self._scratch.name) / "address"
        self._log = log or Path(self._scratch.name) / "log"
        self._deadline_s = start_deadline_s
        words = [str(index), "--port", "0", "--address-file", str(self._address), "--with-parent", *options]
        self._command = [sys.executable, "-m", *module, *words]
        self.url = ""
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> RetrieverProcess:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Lets it finish the requests in progress; kills it if that takes too long."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._scratch.cleanup()

    def _wait(self) -> None:
        end = time.monotonic() + self._deadline_s
        while not self._is_ready():
            if self.process.poll() is not None:
                raise UserError(f"the retriever did not start: {self._last_line()}")
            if time.monotonic() > end:
                raise UserError(f"the retriever was not ready in {self._deadline_s:g} s: {self._last_line()}")
            time.sleep(_POLL_S)

    def _is_ready(self) -> bool:
        if not self._address.exists():
            return False
        self.url = self._address.read_text(encoding="utf-8")
        try:
            return httpx.get(f"{self.url}/ready", timeout=10, trust_env=False).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def _last_line(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it printed nothing")
