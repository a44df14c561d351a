"""Everything a rollout needs to know about ALFWorld. Light: TextWorld is imported where a slot is made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from agent_system.environments.alfworld import index, projection, prompts
from agent_system.environments.alfworld.safety import load_manifest
from agent_system.environments.base import Action, PromptContext, Task

if TYPE_CHECKING:
    from agent_system.environments.alfworld.engine import EngineName
    from agent_system.environments.alfworld.env import AlfworldEnv


@dataclass(frozen=True)
class AlfworldSpec:
    """The settings of the benchmark; picklable.

    Attributes:
        data_root: the folder of the games, laid out as ``alfworld-download`` does (``$ALFWORLD_DATA``).
        max_turns: turns after which an episode has failed.
        history_length: most turns of history in a prompt.
        success_reward: reward of reaching the goal.
        invalid_action_penalty: subtracted for each response that breaks the format.
        inadmissible_is_invalid: also penalise a well-formed action that the environment does not know.
        prompt_profile: ``full`` wording for language models, ``compact`` for the embedded tiny policy.
        cache_dir: where translations and file hashes are kept between runs; None keeps them in memory only.
        engine: ``fast`` or, to compare, ``stock``.
        trusted_manifest: a MANIFEST.jsonl(.xz) whose files are loaded without the strict safety check.
    """

    data_root: str
    max_turns: int = 50
    history_length: int = 5
    success_reward: float = 10.0
    invalid_action_penalty: float = 0.1
    inadmissible_is_invalid: bool = False
    prompt_profile: prompts.PromptProfile = "full"
    cache_dir: str | None = None
    engine: EngineName = "fast"
    trusted_manifest: str | None = None
    name: str = "alfworld"

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise ValueError(f"max_turns is {self.max_turns}; an episode needs at least one turn")
        if self.history_length < 0:
            raise ValueError(f"history_length is {self.history_length}; use 0 for no history")
        for field, value, choices in (
            ("prompt_profile", self.prompt_profile, get_args(prompts.PromptProfile)),
            ("engine", self.engine, ("fast", "stock")),
        ):
            if value not in choices:
                raise ValueError(f"{field} is {value!r}; choose one of {', '.join(choices)}")

    def make(self) -> AlfworldEnv:
        """A new slot. Slots of one process share their translations. Raises ImportError naming the missing extra."""
        try:
            from agent_system.environments.alfworld.engine import GameEngine
            from agent_system.environments.alfworld.env import AlfworldEnv
            from agent_system.environments.alfworld.translation import shared_cache
        except ImportError as error:
            raise ImportError(f"ALFWorld needs `pip install rsipo[alfworld]` ({error})") from error
        trusted = _trusted(self.trusted_manifest) if self.trusted_manifest else frozenset()
        cache = shared_cache(self.cache_dir) if self.engine == "fast" else None
        return AlfworldEnv(GameEngine(self.engine, cache), trusted)

    def project(self, response: str) -> Action:
        """Response to action, by strict tags."""
        return projection.project(response)

    def messages(
        self, context: PromptContext, *, skill: str | None = None, history_length: int | None = None
    ) -> list[dict[str, str]]:
        """The chat messages of a turn; with a ``skill`` they are the teacher's."""
        length = self.history_length if history_length is None else history_length
        return prompts.render(self.prompt_profile, context, skill=skill, history_length=length)

    def tasks(self, split: str) -> list[Task]:
        """The games of a split, sorted by id.

        Raises FileNotFoundError with the remedy when there are none, ValueError for an unusable trusted manifest.
        """
        if self.trusted_manifest:
            try:
                _trusted(self.trusted_manifest)
            except (OSError, ValueError) as error:
                raise ValueError(f"env.trusted_manifest: {error}") from error
        return index.scan(Path(self.data_root), split, self.cache_dir)


@lru_cache(maxsize=4)
def _trusted(manifest: str) -> frozenset[str]:
    return load_manifest(manifest)
