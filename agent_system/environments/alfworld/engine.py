"""One ALFWorld game at a time, through TextWorld's PDDL environment.

An engine is created once and reloaded: each maps its own 34 MB copy of the Fast Downward library, made in ``TMPDIR`` and
never unmapped (unmapping crashes Python at exit).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import textworld
from textworld.envs import PddlEnv

from agent_system.environments.alfworld import patches
from agent_system.environments.alfworld.translation import TranslationCache, preserved_process_state
from agent_system.environments.base import BadTask, EnvironmentFault

EngineName = Literal["fast", "stock"]


@dataclass(frozen=True, slots=True)
class Frame:
    """What the engine answers: its text as is, the admissible commands sorted (``help`` included), the goal reached."""

    feedback: str
    commands: tuple[str, ...]
    won: bool


class GameEngine:
    """A thin layer over ``PddlEnv`` plus ALFWorld's naming of objects.

    Args:
        engine: ``fast`` uses the patches; ``stock`` is TextWorld as it comes.
        cache: translations for ``fast``; None makes one in memory.

    Not thread-safe, and neither is the process: the translator uses global state.
    """

    def __init__(self, engine: EngineName = "fast", cache: TranslationCache | None = None) -> None:
        self._cache = (cache or TranslationCache()) if engine == "fast" else None
        with preserved_process_state():
            self._env = PddlEnv(textworld.EnvInfos())

    def load(self, game: Mapping[str, Any], name: str) -> Frame:
        """Loads a game (the content of a checked file) and starts it.

        Raises BadTask with ``name`` and the reason whatever goes wrong, SystemExit from the translator included;
        a good game still loads afterwards.
        """
        try:
            with self._session():
                self._env.load(game)
                self._name_entities()
                return self._frame(self._env.reset())
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:
            raise BadTask(f"{name}: cannot be loaded ({_reason(error)})") from error

    def step(self, command: str) -> Frame:
        """Plays a command; an unknown one changes nothing. Raises EnvironmentFault when the engine breaks."""
        try:
            with self._session():
                state, _, _ = self._env.step(command)
                return self._frame(state)
        except Exception as error:
            raise EnvironmentFault(f"the engine failed on {command!r} ({_reason(error)})") from error

    @contextlib.contextmanager
    def _session(self) -> Iterator[None]:
        with preserved_process_state(), patches.applied(self._cache) if self._cache else contextlib.nullcontext():
            yield

    def _name_entities(self) -> None:
        entities = self._env._entity_infos
        names = readable_names(entities)
        for identifier, info in entities.items():
            info.name = names[identifier]

    @staticmethod
    def _frame(state: Any) -> Frame:
        return Frame(state.feedback, tuple(state["admissible_commands"]), bool(state["won"]))


def readable_names(identifiers: Iterable[str]) -> dict[str, str]:
    """ALFWorld's names, such as ``mug 2`` for ``mug_bar__minus_00_dot_37_...``.

    What stands before ``_bar_`` is the kind, with ``basin`` added for the basin of a sink or bathtub. Objects of a kind
    are numbered by their identifiers in descending order. Other identifiers keep their text and a trailing space.
    """
    kinds = {identifier: _kind(identifier) for identifier in identifiers}
    numbers: Counter[str] = Counter()
    names = {}
    for identifier in sorted(kinds, reverse=True):
        kind = kinds[identifier]
        if kind is None:
            names[identifier] = f"{identifier} "
        else:
            numbers[kind] += 1
            names[identifier] = f"{kind} {numbers[kind]}"
    return names


def _kind(identifier: str) -> str | None:
    kind, bar, _ = identifier.partition("_bar_")
    if not bar:
        return None
    return kind + "basin" if "basin" in identifier else kind


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyError) and error.args == ("val1",):
        return "its goal can never be reached: no object of the type the goal names"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
