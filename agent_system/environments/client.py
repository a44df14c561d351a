"""Pools that lend environment slots to asyncio programs.

``EnvPool`` spreads slots over Ray actors and survives the loss of any of them; ``LocalEnvPool`` has the same interface
in the calling process, without Ray, for tools and demonstrations::

    session = await pool.acquire()
    try:
        first = await session.reset(task)
        result = await session.step("go to desk 1")
    finally:
        session.release()
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from agent_system.environments.base import EnvironmentFault, EnvironmentSpec, ResetResult, StepResult, Task
from agent_system.environments.slots import Failure, Slots

if TYPE_CHECKING:
    from agent_system.environments.host import Counters, Episode, HostSupervisor


class Session(ABC):
    """The right to one slot, for one episode after another until it is released."""

    def __init__(self, permits: asyncio.Semaphore) -> None:
        self._permits = permits
        self._released = False

    @abstractmethod
    async def reset(self, task: Task) -> ResetResult:
        """Goes to the initial state of ``task``.

        Raises BadTask when it can never be played, EnvironmentFault when the environment broke or missed its deadline.
        """

    @abstractmethod
    async def step(self, action: str) -> StepResult:
        """Plays an action. Raises EnvironmentFault when the episode is lost; the session may be reset again."""

    def release(self) -> None:
        """Gives the slot back. Harmless when repeated."""
        if not self._released:
            self._released = True
            self._give_back()
            self._permits.release()

    @abstractmethod
    def _give_back(self) -> None: ...

    def _check_open(self) -> None:
        if self._released:
            raise EnvironmentFault("this session was released")


class EnvPool:
    """``num_hosts`` Ray actors of ``slots_per_host`` slots each. Belongs to one event loop; Ray must be initialised.

    Args:
        spec: the benchmark; sent to every host.
        call_deadline_s: seconds for a step of all slots of a host.
        load_deadline_s: seconds for loading one task, and for bringing an episode back on a new host.
        start_deadline_s: seconds for a host's process to come up.
        num_cpus: Ray CPUs a host reserves.

    A session gets its slot at ``reset``: on the host that already plays the same task, so that members of a group share
    what is cached of it, else on the least loaded one. ``counters`` tells calls, replaced hosts and lost episodes.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        num_hosts: int,
        slots_per_host: int,
        *,
        call_deadline_s: float = 60.0,
        load_deadline_s: float = 180.0,
        start_deadline_s: float = 180.0,
        num_cpus: float = 0.1,
    ) -> None:
        from agent_system.environments.host import Counters, Deadlines, HostSupervisor

        _check_positive(num_hosts=num_hosts, slots_per_host=slots_per_host)
        deadlines = Deadlines(call_deadline_s, load_deadline_s, start_deadline_s)
        self.counters: Counters = Counters()
        self._hosts = [
            HostSupervisor(f"environment host {number}", spec, slots_per_host, deadlines, self.counters, num_cpus)
            for number in range(num_hosts)
        ]
        self._permits = asyncio.Semaphore(num_hosts * slots_per_host)

    async def acquire(self) -> Session:
        """A session; waits while all slots are lent."""
        await self._permits.acquire()
        return _RemoteSession(self._permits, self._hosts)

    async def close(self) -> None:
        """Kills the hosts. Whoever still waits for one gets an EnvironmentFault."""
        for host in self._hosts:
            host.close()


class _RemoteSession(Session):
    def __init__(self, permits: asyncio.Semaphore, hosts: list[HostSupervisor]) -> None:
        super().__init__(permits)
        self._hosts = hosts
        self._place: tuple[HostSupervisor, Episode] | None = None

    async def reset(self, task: Task) -> ResetResult:
        self._check_open()
        self._give_back()
        # There is a free slot: there are as many permits as slots, and a session holds at most one.
        host = min((h for h in self._hosts if not h.full), key=lambda h: (not h.serves(task.task_id), h.load))
        episode = host.open(task)
        self._place = host, episode
        return await host.reset(episode, task)

    async def step(self, action: str) -> StepResult:
        self._check_open()
        if self._place is None:
            raise EnvironmentFault("no episode is running: reset the session first")
        host, episode = self._place
        return await host.step(episode, action)

    def _give_back(self) -> None:
        if self._place is not None:
            host, episode = self._place
            host.close_episode(episode)
            self._place = None


class LocalEnvPool:
    """The interface of EnvPool on ``slots`` environments in this process. No deadlines; a call blocks the loop."""

    def __init__(self, spec: EnvironmentSpec, slots: int) -> None:
        _check_positive(slots=slots)
        self._slots = Slots(spec, slots)
        self._free = list(range(slots))
        self._permits = asyncio.Semaphore(slots)

    async def acquire(self) -> Session:
        """A session; waits while all slots are lent."""
        await self._permits.acquire()
        return _LocalSession(self._permits, self._slots, self._free)

    async def close(self) -> None:
        self._slots.close()


class _LocalSession(Session):
    def __init__(self, permits: asyncio.Semaphore, slots: Slots, free: list[int]) -> None:
        super().__init__(permits)
        self._slots = slots
        self._free = free
        self._slot = min(free)
        free.remove(self._slot)

    async def reset(self, task: Task) -> ResetResult:
        self._check_open()
        await asyncio.sleep(0)  # let other episodes go on between two calls
        return _value(self._slots.reset(self._slot, task))

    async def step(self, action: str) -> StepResult:
        self._check_open()
        await asyncio.sleep(0)
        outcome = self._slots.step({self._slot: action})[self._slot]
        if isinstance(outcome, Failure):
            raise outcome.error()
        return outcome

    def _give_back(self) -> None:
        self._free.append(self._slot)


def _value(outcome: ResetResult | Failure) -> ResetResult:
    if isinstance(outcome, Failure):
        raise outcome.error()
    return outcome


def _check_positive(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}; an environment pool needs at least 1")
