"""ALFWorld behind the environment protocol: one slot."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from agent_system.environments.alfworld.engine import Frame, GameEngine
from agent_system.environments.alfworld.prompts import clean_observation, task_sentence
from agent_system.environments.alfworld.safety import read_game
from agent_system.environments.base import EnvironmentFault, Observation, ResetResult, StepResult, Task

HELP = "help"


class AlfworldEnv:
    """One slot. ``help`` is never offered: it lists command templates and wastes a turn."""

    def __init__(self, engine: GameEngine, trusted: Collection[str] = frozenset()) -> None:
        self._engine = engine
        self._trusted = trusted
        self._loaded = ""
        self._admissible: tuple[str, ...] | None = None

    def reset(self, task: Task) -> ResetResult:
        """The initial state of ``task``. The fingerprint is SHA-256 over the game's hash, the engine's first text and
        the admissible actions: texts alone do not tell games with differently hidden objects apart.

        Raises BadTask when the file is missing, changed, unsafe or cannot be loaded.
        """
        self._admissible = None
        game = read_game(task.location, sha256=task.sha256, trusted=self._trusted)
        frame = self._engine.load(game, task.location)
        observation = self._observe(frame)
        fingerprint = hashlib.sha256(
            "\0".join((task.sha256, frame.feedback, *observation.admissible_actions)).encode()
        ).hexdigest()
        return ResetResult(task_sentence(frame.feedback), observation, fingerprint)

    def step(self, action: str) -> StepResult:
        """Plays ``action``; an unknown one answers "Nothing happens.".

        Raises EnvironmentFault before a reset, after the end, and when the engine breaks.
        """
        if self._admissible is None:
            raise EnvironmentFault("no episode is running: reset the environment first")
        admissible = action.strip() in self._admissible
        frame = self._engine.step(action)
        observation = self._observe(frame)
        if frame.won:
            self._admissible = None
        return StepResult(observation, done=frame.won, success=frame.won, admissible=admissible)

    def close(self) -> None:
        """Ends the episode. The engine's library stays mapped: unloading it makes Python crash at exit."""
        self._admissible = None

    def _observe(self, frame: Frame) -> Observation:
        self._admissible = tuple(command for command in frame.commands if command != HELP)
        return Observation(clean_observation(frame.feedback), self._admissible)
