"""A rollout worker: an asyncio Ray actor that runs one program on many tasks at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from agent_system.environments.base import EnvironmentSpec, Task
from agent_system.rollout.policy import Policy
from agent_system.rollout.program import RolloutSettings, SessionPool, TaskContext, TaskProgram
from agent_system.rollout.prompting import Prompter
from agent_system.rollout.types import LLMClient


class RolloutWorker:
    """Runs tasks concurrently; none waits for another, apart from the limit on tasks and the environment slots.

    A plain class, usable in process; ``RolloutPool`` makes it an actor.

    Args:
        spec: the benchmark.
        prompter: tokenizer and prompt budgets.
        client: the policy's server client (veRL's ``LLMServerClient``).
        open_sessions: opens the pool of environment slots; called once, on the worker's event loop.
        settings: seeds, budgets, deadlines and limits.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        prompter: Prompter,
        client: LLMClient,
        open_sessions: Callable[[], SessionPool],
        settings: RolloutSettings,
    ):
        self._spec = spec
        self._policy = Policy(client, prompter, attempts=settings.generation_attempts)
        self._open_sessions = open_sessions
        self._sessions: SessionPool | None = None
        self._settings = settings
        self._permits = asyncio.Semaphore(settings.concurrent_tasks)
        self._running: dict[int, tuple[str, float]] = {}
        self._counters: Counter[str] = Counter()

    async def run_task(self, program: TaskProgram, task: Task, step: int) -> Any:
        """What ``program`` returns for ``task``. Exceptions of the program propagate; lost episodes are values."""
        async with self._permits:
            if self._sessions is None:
                self._sessions = self._open_sessions()
            key = id(asyncio.current_task())
            self._running[key] = (task.task_id, time.monotonic())
            try:
                context = TaskContext(
                    task, step, self._spec, self._policy, self._sessions, self._settings, self._counters
                )
                result = await program.run(task, context)
                self._counters["tasks"] += 1
                return result
            finally:
                del self._running[key]

    async def progress(self) -> dict[str, Any]:
        """Counts since the start (``tasks``, ``episodes``, ``ok``, ``failed``, ``timeout``, ``turns``,
        ``generations``), and what runs now: ``episodes_running``; ``running``, task id to seconds since its start."""
        now = time.monotonic()
        running = {task_id: round(now - start, 1) for task_id, start in self._running.values()}
        return {**self._counters, "running": running}

    async def close(self) -> None:
        """Close the environment slots. The worker must have no task running."""
        if self._sessions is not None:
            await self._sessions.close()
            self._sessions = None
