"""Many environments in one process, addressed by slot number. Faults come back as values, one slot at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agent_system.environments.base import (
    BadTask,
    Environment,
    EnvironmentFault,
    EnvironmentSpec,
    ResetResult,
    StepResult,
    Task,
)


@dataclass(frozen=True, slots=True)
class Failure:
    """An environment's error as a value, so that it can cross processes and never ends the process it arose in."""

    message: str
    bad_task: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        known = isinstance(error, EnvironmentFault)
        return cls(str(error) if known else f"{type(error).__name__}: {error}", isinstance(error, BadTask))

    def error(self) -> EnvironmentFault:
        return BadTask(self.message) if self.bad_task else EnvironmentFault(self.message)


class Replayed(NamedTuple):
    """An episode brought to where it was: its reset and, if any action was replayed, the last step."""

    reset: ResetResult
    last_step: StepResult | None


class Slots:
    """``count`` environments, each created once, when first used, and reset to one task after another.

    Single-threaded. Except for KeyboardInterrupt nothing that an environment raises gets out.
    """

    def __init__(self, spec: EnvironmentSpec, count: int) -> None:
        self._spec = spec
        self._environments: list[Environment | None] = [None] * count

    def pid(self) -> int:
        """The process that holds the slots."""
        return os.getpid()

    def reset(self, slot: int, task: Task) -> ResetResult | Failure:
        try:
            environment = self._environments[slot]
            if environment is None:
                environment = self._environments[slot] = self._spec.make()
            return environment.reset(task)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Failure.of(error)

    def step(self, actions: Mapping[int, str]) -> dict[int, StepResult | Failure]:
        """One step in each of the given slots; the others are left alone."""
        return {slot: self._step(slot, action) for slot, action in actions.items()}

    def replay(self, slot: int, task: Task, actions: Sequence[str]) -> Replayed | Failure:
        """Reset, then ``actions`` one after another."""
        reset = self.reset(slot, task)
        if isinstance(reset, Failure):
            return reset
        last: StepResult | None = None
        for action in actions:
            outcome = self._step(slot, action)
            if isinstance(outcome, Failure):
                return outcome
            last = outcome
        return Replayed(reset, last)

    def _step(self, slot: int, action: str) -> StepResult | Failure:
        try:
            environment = self._environments[slot]
            if environment is None:
                raise EnvironmentFault(f"slot {slot} was never reset")
            return environment.step(action)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Failure.of(error)

    def close(self) -> None:
        for environment in self._environments:
            if environment is not None:
                environment.close()
