"""One thread that owns a ``ContinuousBatcher``; other threads hand it requests and calls."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from verl_ext.generation import Completion, ContinuousBatcher, GenerationError, Request


class GenerationThread:
    """Runs the batcher as long as there is work and sleeps otherwise.

    Calls run between decoding steps, so they see no half-done step. All methods are thread-safe and return at once.
    """

    def __init__(self, batcher: ContinuousBatcher):
        self._batcher = batcher
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._when_idle: deque[Callable[[], None]] = deque()
        self._failure: BaseException | None = None
        threading.Thread(target=self._run, name="generation", daemon=True).start()

    def submit(self, request: Request) -> Future[Completion]:
        """Queue a request; its future never stays unresolved, also when the thread dies."""

        def accept() -> None:
            if self._failure is None:
                self._batcher.submit(request)
            elif request.future.set_running_or_notify_cancel():
                request.future.set_exception(self._died())

        self._inbox.put(accept)
        return request.future

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        """Run ``function`` at the next token boundary."""
        future, run = self._with_future(function)
        self._inbox.put(run)
        return future

    def call_when_idle(self, function: Callable[[], Any]) -> Future[Any]:
        """Let the responses in progress finish, run ``function``, then go on with the waiting requests."""
        future, run = self._with_future(function)
        self._inbox.put(lambda: self._when_idle.append(run))
        return future

    def _with_future(self, function: Callable[[], Any]) -> tuple[Future[Any], Callable[[], None]]:
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            if self._failure is not None:
                future.set_exception(self._died())
                return
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        return future, run

    def _died(self) -> GenerationError:
        return GenerationError(f"the generation thread died: {type(self._failure).__name__}: {self._failure}")

    def _run(self) -> None:
        batcher = self._batcher
        while True:
            busy = batcher.num_running or batcher.num_waiting or self._when_idle
            if not busy or not self._inbox.empty():
                self._inbox.get()()
                continue
            try:
                if self._when_idle and not batcher.num_running:
                    self._when_idle.popleft()()
                else:
                    batcher.step(admit=not self._when_idle)
            except Exception as error:  # a bug; requests must hear of it instead of waiting for ever
                self._failure = error
                batcher.fail_all(self._died())
