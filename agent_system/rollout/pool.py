"""The driver's side of the rollout workers: hand out tasks, give back results as they finish, replace what dies."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from agent_system.environments.base import EnvironmentSpec, Task
from agent_system.rollout.program import RolloutSettings, SessionPool, TaskProgram
from agent_system.rollout.prompting import Prompter
from agent_system.rollout.types import LLMClient
from agent_system.rollout.worker import RolloutWorker

logger = logging.getLogger(__name__)

# One thread per worker: the work is waiting for servers and environments.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
_PROGRESS_S = 2.0
_CLOSE_S = 10.0


class PhaseDeadline(TimeoutError):
    """A rollout phase did not end in time. ``unfinished`` lists the ids of the tasks without a result."""

    def __init__(self, deadline_s: float, unfinished: Sequence[str], running: str):
        shown = ", ".join(unfinished[:5]) + (" …" if len(unfinished) > 5 else "")
        super().__init__(
            f"rollout phase not over within {deadline_s:g} s: {len(unfinished)} tasks unfinished ({shown}); {running}"
        )
        self.unfinished = list(unfinished)


class WorkerLost(RuntimeError):
    """Workers died again and again while running the same tasks, which are named."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """State of a phase. ``workers`` holds each worker's ``progress()``, None for one that did not answer in time."""

    finished: int
    total: int
    elapsed_s: float
    workers: list[dict[str, Any] | None]


class RolloutPool:
    """``num_workers`` RolloutWorker actors.

    Args:
        num_workers: actors, at least 1.
        spec, prompter, client, settings: as RolloutWorker takes them.
        open_sessions: called with the worker's number, on that worker, to open its environment slots.
        task_retries: how often one task may be submitted again after its worker died.
        num_cpus: Ray CPUs of one worker; it mostly waits.
    """

    def __init__(
        self,
        num_workers: int,
        *,
        spec: EnvironmentSpec,
        prompter: Prompter,
        client: LLMClient,
        open_sessions: Callable[[int], SessionPool],
        settings: RolloutSettings,
        task_retries: int = 2,
        num_cpus: float = 0.25,
    ):
        self._arguments = (spec, prompter, client)
        self._open_sessions = open_sessions
        self._settings = settings
        self._task_retries = task_retries
        self._num_cpus = num_cpus
        self._workers: list[Any] = [self._start(number) for number in range(num_workers)]
        self.counters: Counter[str] = Counter()
        """``workers_replaced`` and ``tasks_resubmitted`` since the start."""

    def submit(
        self,
        program: TaskProgram,
        tasks: Sequence[Task],
        step: int,
        *,
        deadline_s: float,
        heartbeat_s: float = 10.0,
        on_heartbeat: Callable[[Heartbeat], None] | None = None,
    ) -> Generator[tuple[int, Any], None, None]:
        """Run ``program`` on every task; yields (index in ``tasks``, result) in the order of finishing.

        A worker that dies is replaced and its unfinished tasks run again, with the same seeds. Leaving the iterator
        early cancels what is still running.

        Raises:
            PhaseDeadline: not over within ``deadline_s`` seconds; names the unfinished tasks.
            WorkerLost: a task lost its worker more than ``task_retries`` times.
            Exception: whatever the program raised (Ray adds the remote traceback).
        """
        phase = _Phase(self, ray.put(program), list(tasks), step)
        phase.fill()
        return phase.results(deadline_s, heartbeat_s, on_heartbeat)

    def close(self) -> None:
        """Close the environments and end the workers, also when they do not answer."""
        closing: list[Any] = [worker.close.remote() for worker in self._workers]
        ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
        for worker in self._workers:
            ray.kill(worker)
        self._workers = []

    def _start(self, number: int) -> Any:
        actor = ray.remote(RolloutWorker).options(num_cpus=self._num_cpus, runtime_env={"env_vars": _ONE_THREAD})
        return actor.remote(*self._arguments, _Numbered(self._open_sessions, number), self._settings)

    def _replace(self, number: int) -> None:
        ray.kill(self._workers[number])  # a worker that is merely unreachable must not go on
        self._workers[number] = self._start(number)
        self.counters["workers_replaced"] += 1

    def _progress(self) -> list[dict[str, Any] | None]:
        asked: list[Any] = [worker.progress.remote() for worker in self._workers]
        answered = set(ray.wait(asked, num_returns=len(asked), timeout=_PROGRESS_S)[0])
        return [_value_or_none(reference) if reference in answered else None for reference in asked]


class _Phase:
    """One call of ``submit``: which task is where."""

    def __init__(self, pool: RolloutPool, program: ray.ObjectRef, tasks: list[Task], step: int):
        self._pool, self._program, self._tasks, self._step = pool, program, tasks, step
        self._queue = deque(range(len(tasks)))
        self._losses: Counter[int] = Counter()
        self._flying: dict[Any, tuple[int, int]] = {}  # result -> (task index, worker number)
        self._finished = 0

    def fill(self) -> None:
        """Give waiting tasks to the workers with the fewest, up to what each may run at once."""
        workers = self._pool._workers
        load = Counter(number for _, number in self._flying.values())
        while self._queue:
            number = min(range(len(workers)), key=lambda candidate: load[candidate])
            if load[number] >= self._pool._settings.concurrent_tasks:
                return
            index = self._queue.popleft()
            reference = workers[number].run_task.remote(self._program, self._tasks[index], self._step)
            self._flying[reference] = (index, number)
            load[number] += 1

    def results(
        self, deadline_s: float, heartbeat_s: float, on_heartbeat: Callable[[Heartbeat], None] | None
    ) -> Generator[tuple[int, Any], None, None]:
        start = time.monotonic()
        next_beat = start + heartbeat_s
        try:
            while self._flying:
                now = time.monotonic()
                if now >= start + deadline_s:
                    raise PhaseDeadline(deadline_s, self._unfinished(), self._describe_workers())
                if now >= next_beat:
                    if on_heartbeat is not None:
                        beat = Heartbeat(self._finished, len(self._tasks), now - start, self._pool._progress())
                        on_heartbeat(beat)
                    next_beat = now + heartbeat_s
                wait_s = max(0.0, min(next_beat, start + deadline_s) - now)
                for reference in ray.wait(list(self._flying), num_returns=1, timeout=wait_s)[0]:
                    yield from self._take(reference)
        finally:
            for reference in self._flying:
                ray.cancel(reference)

    def _take(self, reference: ray.ObjectRef) -> Iterator[tuple[int, Any]]:
        index, number = self._flying[reference]
        try:
            result = ray.get(reference)
        except RayActorError as error:
            if isinstance(error, RayTaskError):
                raise  # an actor that the program uses, not the worker
            self._lose(number, error)
            return
        del self._flying[reference]
        self._finished += 1
        self.fill()
        yield index, result

    def _lose(self, number: int, error: RayActorError) -> None:
        """Replace a dead worker and run its unfinished tasks again."""
        lost: list[Any] = [reference for reference, (_, owner) in self._flying.items() if owner == number]
        indices = [self._flying.pop(reference)[0] for reference in lost]
        self._losses.update(indices)
        names = ", ".join(self._tasks[index].task_id for index in indices)
        reason = str(error).strip().splitlines()[0]
        if any(self._losses[index] > self._pool._task_retries for index in indices):
            raise WorkerLost(f"rollout worker {number} died again ({reason}) while running: {names}") from error
        logger.warning("rollout worker %d died (%s); its tasks run again: %s", number, reason, names)
        self._pool._replace(number)
        self._pool.counters["tasks_resubmitted"] += len(indices)
        self._queue.extendleft(reversed(indices))
        self.fill()

    def _unfinished(self) -> list[str]:
        indices = sorted([index for index, _ in self._flying.values()] + list(self._queue))
        return [self._tasks[index].task_id for index in indices]

    def _describe_workers(self) -> str:
        silent = [str(number) for number, progress in enumerate(self._pool._progress()) if progress is None]
        return f"workers not answering: {', '.join(silent)}" if silent else "all workers answer"


@dataclass(frozen=True, slots=True)
class _Numbered:
    """``open_sessions`` bound to a worker's number; picklable."""

    open_sessions: Callable[[int], SessionPool]
    number: int

    def __call__(self) -> SessionPool:
        return self.open_sessions(self.number)


def _value_or_none(reference: ray.ObjectRef) -> dict[str, Any] | None:
    try:
        value: dict[str, Any] = ray.get(reference)
        return value
    except RayActorError:
        return None
