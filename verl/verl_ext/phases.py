"""A clock for the phases of a step: heartbeat while one runs, seconds and share afterwards, memory of the process tree."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil


class PhaseTimeout(TimeoutError):
    """A phase did not end within its deadline."""


@contextmanager
def deadline(seconds: float | None, error: Exception, on_expiry: Callable[[], object] = lambda: None) -> Iterator[None]:
    """End the block with ``error`` once ``seconds`` have passed; None, or any thread but the main one, never does.

    ``on_expiry`` is called first, while what hangs is still there.

    It is an alarm signal that interrupts, so it also ends waits inside Ray, which lose any other exception of a handler.
    Deadlines may be nested.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    expired = False

    def expire(*_: object) -> None:
        nonlocal expired
        expired = True
        try:
            on_expiry()
        finally:
            raise KeyboardInterrupt

    handler = signal.signal(signal.SIGALRM, expire)
    remaining, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    started = time.monotonic()
    try:
        yield
    except KeyboardInterrupt:
        if expired:
            raise error from None
        raise
    finally:
        left = max(remaining - (time.monotonic() - started), 0.001) if remaining else 0
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, left)


class PhaseClock:
    """Times named phases and says, at a fixed interval, which one is running and how far it is.

    Args:
        say: prints one line.
        heartbeat_s: seconds between two signs of life within a phase.
        deadline_s: seconds after which a phase is given up; None never does.
        on_timeout: called with a phase's name when it did not end in time, before anything is taken down.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        heartbeat_s: float,
        deadline_s: float | None = None,
        on_timeout: Callable[[str], object] = lambda name: None,
    ) -> None:
        self._say = say
        self._heartbeat_s = heartbeat_s
        self._deadline_s = deadline_s
        self._on_timeout = on_timeout
        self._seconds: dict[str, float] = {}
        self.detail = ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Run a block as phase ``name``. Set ``detail`` inside it to show progress in the heartbeat.

        Raises:
            PhaseTimeout: it took longer than the deadline.
            TimeoutError: a finer deadline within it.
        """
        self.detail = ""
        started = time.monotonic()
        finished = threading.Event()

        def beat() -> None:
            while not finished.wait(self._heartbeat_s):
                elapsed = time.monotonic() - started
                progress = f" ({self.detail})" if self.detail else ""
                with suppress(OSError):  # a full disk is for the main thread to find
                    self._say(f"… {name}{progress}: {elapsed:.0f} s")

        thread = threading.Thread(target=beat, daemon=True, name=f"heartbeat-{name}")
        thread.start()
        error = PhaseTimeout(f"phase '{name}' did not end within {self._deadline_s} s")
        try:
            with deadline(self._deadline_s, error, lambda: self._on_timeout(name)):
                yield
        except PhaseTimeout as timeout:
            raise PhaseTimeout(f"{timeout} ({self.detail})") if self.detail else timeout from None
        except Exception as other:
            if isinstance(other, TimeoutError) or isinstance(other.__cause__, TimeoutError):
                self._on_timeout(name)
            raise
        finally:
            finished.set()
            thread.join()
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - started

    def take(self) -> dict[str, float]:
        """Seconds and share of each phase since the last call, as metrics; forgets them."""
        total = sum(self._seconds.values()) or 1.0
        metrics = {f"seconds/{name}": value for name, value in self._seconds.items()}
        metrics |= {f"share/{name}": value / total for name, value in self._seconds.items()}
        self._seconds = {}
        return metrics


def process_memory() -> dict[str, float]:
    """Resident memory in GiB of this process and of its descendants by kind, so that growth shows."""
    here = psutil.Process()
    metrics = {"memory/driver_gib": here.memory_info().rss / 2**30}
    for child in here.children(recursive=True):
        try:
            title, rss = (child.cmdline() or [child.name()])[0], child.memory_info().rss / 2**30
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        kind = title.split("::")[1].split(".")[0].split("(")[0] if "::" in title else "ray_services"
        name = f"memory/{kind}_gib"
        metrics[name] = metrics.get(name, 0.0) + rss
    return metrics
