"""The one protocol every benchmark implements: resettable to a *named* task, with a fingerprint that proves it.

An environment knows nothing of veRL or of any training algorithm. Everything here is picklable, because tasks travel
from the driver to Ray actors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


class EnvironmentFault(Exception):
    """The environment broke (crash, deadline, lost host). The episode is lost; the task itself may be fine."""


class BadTask(EnvironmentFault):
    """This task can never be played (corrupt or unsafe file, unsolvable game). The message says which and why."""


@dataclass(frozen=True, slots=True)
class Task:
    """One named task.

    Attributes:
        task_id: unique and stable across machines (ALFWorld: the game's path relative to the data root).
        task_type: the type whose gains are pooled (ALFWorld: one of six; search: the source dataset).
        location: what ``Environment.reset`` needs to find it (ALFWorld: absolute path of the game file).
        sha256: hash of the task's content, part of the fingerprint.
        extra: further read-only facts, by name.
    """

    task_id: str
    task_type: str
    location: str
    sha256: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent sees now. ``admissible_actions`` is empty where the action space is open (search)."""

    text: str
    admissible_actions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResetResult:
    """A fresh episode: the task sentence, the first observation and the initial-state fingerprint (hex sha256)."""

    instruction: str
    observation: Observation
    fingerprint: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """``admissible`` tells whether the action just taken was among the admissible ones (always true on open spaces)."""

    observation: Observation
    done: bool
    success: bool
    admissible: bool = True


class Environment(Protocol):
    """One slot, created once and reset to many tasks. Single-threaded; never shared between threads."""

    def reset(self, task: Task) -> ResetResult:
        """Go to the initial state of ``task``. Raises BadTask when it can never be played."""

    def step(self, action: str) -> StepResult: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Action:
    """A response projected to an action. ``valid`` is false when the response broke the format; ``reason`` says how."""

    text: str
    valid: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PromptContext:
    """All that a turn's prompt may use.

    ``history`` holds every earlier turn, oldest first, as (observation text, action text); ``EnvironmentSpec.messages``
    shows at most the last ``history_length`` of them. ``step`` counts from 1.
    """

    instruction: str
    observation: Observation
    history: tuple[tuple[str, str], ...] = ()

    @property
    def step(self) -> int:
        return len(self.history) + 1


@runtime_checkable
class EnvironmentSpec(Protocol):
    """Everything a rollout needs to know about a benchmark. Picklable; holds settings, never open resources."""

    # Read-only, so that frozen dataclasses fit.
    @property
    def name(self) -> str: ...
    @property
    def max_turns(self) -> int: ...
    @property
    def history_length(self) -> int: ...
    @property
    def success_reward(self) -> float: ...
    @property
    def invalid_action_penalty(self) -> float: ...
    @property
    def inadmissible_is_invalid(self) -> bool: ...

    def make(self) -> Environment:
        """A new slot, in the process that will use it."""

    def project(self, response: str) -> Action:
        """Response text to action (strict tags)."""

    def messages(
        self, context: PromptContext, *, skill: str | None = None, history_length: int | None = None
    ) -> list[dict[str, str]]:
        """The chat messages of one turn; the teacher's carry the skill right after the task description."""

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split, sorted by id. Raises FileNotFoundError with the remedy when the data are missing."""
