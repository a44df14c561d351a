"""EnvHost, a Ray actor with many slots, and the supervisor through which an asyncio program uses one.

The supervisor sends one call at a time, so that a deadline measures the call and not the queue before it. Steps that
wait together go out as one call. A host that died or missed a deadline is killed and replaced; its episodes are brought
back, when next needed, by replaying their actions, and the fingerprint must be the same as before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from agent_system.environments.base import EnvironmentFault, EnvironmentSpec, ResetResult, StepResult, Task
from agent_system.environments.slots import Failure, Slots

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
_CLOSED = "the environment pool was closed"


class EnvHost(Slots):
    """Slots in a process of their own."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds a call may take: a step of all slots, a reset or replay of one slot, the start of the process."""

    call_s: float = 60.0
    load_s: float = 180.0
    start_s: float = 180.0


@dataclass
class Counters:
    """What a pool did: calls sent, resets and steps in them, hosts replaced, episodes restored and lost."""

    calls: int = 0
    resets: int = 0
    steps: int = 0
    restarts: int = 0
    restored: int = 0
    lost: int = 0


@dataclass(eq=False)
class Episode:
    """What is needed to bring an episode back: its task, its actions so far, and the proof that it is the same."""

    slot: int
    task: Task | None = None
    actions: list[str] = field(default_factory=list)
    fingerprint: str = ""
    incarnation: int = -1
    lost: str = ""


@dataclass(eq=False)
class _Call:
    """A waiting reset (``task`` set) or step."""

    episode: Episode
    future: asyncio.Future[Any]
    task: Task | None = None
    action: str = ""
    attempts: int = 0


class _HostDown(Exception):
    def __init__(self, message: str, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class HostSupervisor:
    """One host and the episodes on it. Belongs to one event loop."""

    def __init__(
        self, name: str, spec: EnvironmentSpec, slots: int, deadlines: Deadlines, counters: Counters, num_cpus: float
    ) -> None:
        self.name = name
        self._spec = spec
        self._num_slots = slots
        self._deadlines = deadlines
        self._counters = counters
        self._num_cpus = num_cpus
        self._free = list(range(slots))
        self._episodes: set[Episode] = set()
        self._calls: deque[_Call] = deque()
        self._server: asyncio.Task[None] | None = None
        self._actor: Any = None
        self._started = False
        self._incarnation = 0

    # -- slots -----------------------------------------------------------------------------------------------------

    @property
    def load(self) -> int:
        """Episodes on this host."""
        return len(self._episodes)

    @property
    def full(self) -> bool:
        return not self._free

    def serves(self, task_id: str) -> bool:
        return any(episode.task is not None and episode.task.task_id == task_id for episode in self._episodes)

    def open(self, task: Task) -> Episode:
        """Lends the lowest free slot (slots are created when first used, so few are when few are needed)."""
        slot = min(self._free)
        self._free.remove(slot)
        episode = Episode(slot, task)
        self._episodes.add(episode)
        return episode

    def close_episode(self, episode: Episode) -> None:
        self._episodes.discard(episode)
        self._free.append(episode.slot)

    # -- calls -----------------------------------------------------------------------------------------------------

    async def reset(self, episode: Episode, task: Task) -> ResetResult:
        """Raises BadTask for a game that cannot be loaded, EnvironmentFault when the host cannot do it."""
        return await self._submit(_Call(episode, asyncio.get_running_loop().create_future(), task=task))

    async def step(self, episode: Episode, action: str) -> StepResult:
        """Raises EnvironmentFault when the environment broke or the episode was lost with its host."""
        if not episode.fingerprint:
            raise EnvironmentFault("no episode is running: reset the session first")
        return await self._submit(_Call(episode, asyncio.get_running_loop().create_future(), action=action))

    async def _submit(self, call: _Call) -> Any:
        self._calls.append(call)
        if self._server is None or self._server.done():
            self._server = asyncio.get_running_loop().create_task(self._serve())
        return await call.future

    async def _serve(self) -> None:
        while batch := self._next_batch():
            blamed = batch
            try:
                await self._start()
                for call in batch if batch[0].task is None else ():
                    if call.episode.incarnation != self._incarnation:
                        blamed = [call]
                        await self._restore(call.episode)
                blamed = batch
                await self._perform([call for call in batch if not self._fail_if_lost(call)])
            except _HostDown as error:
                self._replace(error)
                self._retry(batch, blamed, error)
            except asyncio.CancelledError:
                for call in batch:
                    _settle(call.future, EnvironmentFault(_CLOSED))
                raise
            except Exception as error:  # a bug here must reach the callers, not hang them
                for call in batch:
                    _settle(call.future, EnvironmentFault(f"{self.name}: {type(error).__name__}: {error}"))

    def _next_batch(self) -> list[_Call]:
        """The first waiting call and, if it is a fresh step, all other fresh steps. Cancelled calls are dropped."""
        self._calls = deque(call for call in self._calls if not call.future.done() and not self._fail_if_lost(call))
        if not self._calls:
            return []
        if not _can_share(self._calls[0]):
            return [self._calls.popleft()]
        batch = [call for call in self._calls if _can_share(call)]
        self._calls = deque(call for call in self._calls if not _can_share(call))
        return batch

    async def _perform(self, batch: list[_Call]) -> None:
        if not batch:
            return
        if (task := batch[0].task) is not None:
            self._counters.resets += 1
            reply = self._actor.reset.remote(batch[0].episode.slot, task)
            self._finish_reset(batch[0], task, await self._ask(reply, self._deadlines.load_s, "reset"))
            return
        self._counters.steps += len(batch)
        actions = {call.episode.slot: call.action for call in batch}
        outcomes = await self._ask(self._actor.step.remote(actions), self._deadlines.call_s, "step")
        for call in batch:
            outcome = outcomes[call.episode.slot]
            if isinstance(outcome, Failure):
                self._lose(call.episode, outcome.message)
                _settle(call.future, outcome.error())
            else:
                call.episode.actions.append(call.action)
                _settle(call.future, outcome)

    def _finish_reset(self, call: _Call, task: Task, outcome: ResetResult | Failure) -> None:
        if isinstance(outcome, Failure):
            _settle(call.future, outcome.error())
            return
        episode = call.episode
        episode.task, episode.actions, episode.lost = task, [], ""
        episode.fingerprint, episode.incarnation = outcome.fingerprint, self._incarnation
        _settle(call.future, outcome)

    def _fail_if_lost(self, call: _Call) -> bool:
        if call.task is None and call.episode.lost:
            _settle(call.future, EnvironmentFault(call.episode.lost))
            return True
        return False

    # -- the process -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        if self._started:
            return
        if self._actor is None:
            # One call after another: environments are not thread-safe. Restarting is the supervisor's business.
            host = ray.remote(EnvHost).options(num_cpus=self._num_cpus, max_concurrency=1, max_restarts=0)
            self._actor = host.remote(self._spec, self._num_slots)
        await self._ask(self._actor.pid.remote(), self._deadlines.start_s, "start (has the Ray cluster a free CPU?)")
        self._started = True
        self._incarnation += 1

    async def _ask(self, reference: Any, deadline_s: float, what: str) -> Any:
        self._counters.calls += 1
        try:
            return await asyncio.wait_for(asyncio.wrap_future(reference.future()), deadline_s)
        except asyncio.TimeoutError:
            raise _HostDown(f"{self.name}: {what} took longer than {deadline_s:g} s", timed_out=True) from None
        except RayError as error:
            raise _HostDown(f"{self.name}: {what} failed, {_first_line(error)}") from error

    async def _restore(self, episode: Episode) -> None:
        """Replays an episode on the present host; marks it lost when that leads elsewhere."""
        call = self._actor.replay.remote(episode.slot, episode.task, list(episode.actions))
        outcome = await self._ask(call, self._deadlines.load_s, "replay")
        if isinstance(outcome, Failure):
            self._lose(episode, f"could not be replayed: {outcome.message}")
        elif outcome.reset.fingerprint != episode.fingerprint:
            self._lose(episode, "replayed to another initial state")
        else:
            self._counters.restored += 1
            episode.incarnation = self._incarnation

    def _replace(self, cause: _HostDown) -> None:
        logger.warning("replacing an environment host: %s", cause)
        self._counters.restarts += 1
        self._kill()

    def _retry(self, batch: list[_Call], blamed: list[_Call], cause: _HostDown) -> None:
        """Puts calls back, first in line and one by one, until one has been there when the host fell twice."""
        for call in reversed(batch):
            call.attempts += call in blamed
            if call.attempts >= MAX_ATTEMPTS or (cause.timed_out and call.task is not None):
                self._lose(call.episode, str(cause))
                _settle(call.future, EnvironmentFault(str(cause)))
            else:
                self._calls.appendleft(call)

    def _lose(self, episode: Episode, reason: str) -> None:
        task = episode.task.task_id if episode.task else "?"
        episode.lost = f"episode of {task} lost: {reason}"
        self._counters.lost += 1

    def _kill(self) -> None:
        if self._actor is not None:
            with contextlib.suppress(Exception):
                ray.kill(self._actor, no_restart=True)
        self._actor, self._started = None, False

    def close(self) -> None:
        """Kills the host; whoever still waits for it gets an EnvironmentFault."""
        if self._server is not None:
            self._server.cancel()
        for call in self._calls:
            _settle(call.future, EnvironmentFault(_CLOSED))
        self._calls.clear()
        self._kill()


def _can_share(call: _Call) -> bool:
    return call.task is None and call.attempts == 0


def _settle(future: asyncio.Future[Any], outcome: Any) -> None:
    """Gives a caller its answer, unless it has stopped waiting."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
