"""Stopping a run from outside: what can be done again ends at once, what cannot is finished first."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Stopped(Exception):
    """The loop ended because it was asked to. ``saved`` is the checkpoint of ``step``, None where no step was done."""

    def __init__(self, reason: str, step: int, saved: Path | None) -> None:
        where = f"saved in {saved}" if saved else "nothing to save"
        super().__init__(f"stopped by {reason} after step {step}, {where}")
        self.step = step
        self.saved = saved


class StopSwitch:
    """Whether the run was asked to stop, and whether it may stop right now.

    A request takes effect at once within ``allowed`` (and before ``deferred`` was entered), else at the next ``check``;
    it arrives as KeyboardInterrupt, the one exception that also ends waits inside Ray. A second signal always takes effect
    at once, with ``insisted`` set. After ``finish`` further signals are ignored: the run is being taken down.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.signal: signal.Signals | None = None
        self.insisted = False
        self._allowed = True
        self._finished = False

    def on_signal(self, number: int, _frame: object = None) -> None:
        """The handler to install for SIGTERM and SIGINT."""
        if self._finished:
            return
        if self.signal is not None:
            self.insisted = True
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        self.reason = "Ctrl-C" if number == signal.SIGINT else self.signal.name
        if self._allowed:
            raise KeyboardInterrupt
        notice = f"rsipo: {self.reason}: stopping as soon as this phase is done and saved; once more ends at once\n"
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, notice.encode())  # print is not safe in a handler

    def request(self, reason: str) -> None:
        """Ask for a stop at the next ``check``."""
        self.reason = self.reason or reason

    def check(self) -> None:
        """End here if a stop was asked for."""
        if self.reason is not None:
            raise KeyboardInterrupt

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """What is done in the block is done again after a resume, so a request ends it."""
        yield from self._set(True)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A request waits, except within ``allowed``."""
        yield from self._set(False)

    def _set(self, allowed: bool) -> Iterator[None]:
        before, self._allowed = self._allowed, allowed
        try:
            if allowed:
                self.check()
            yield
        finally:
            self._allowed = before

    def finish(self) -> None:
        """From now on the run ends whatever comes."""
        self._finished = True

    @property
    def exit_status(self) -> int:
        """What a shell expects of a process that ended for this reason: 128 and the signal's number, 2 without a signal."""
        return 2 if self.signal is None else 128 + self.signal
