"""Everything a rollout needs to know about search-based question answering. Light: clients are made where they are used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from agent_system.environments.base import Action, PromptContext, Task
from agent_system.environments.search import index, projection, prompts
from agent_system.environments.search.observations import ObservationForm

if TYPE_CHECKING:
    from agent_system.environments.search.env import SearchEnv
    from agent_system.environments.search.sessions import SearchPool
    from agent_system.retrieval.client import RetrieverClient

_BUILDERS = "scripts/data/search_train_*.py build it"
_PREPROCESS = "examples/data_preprocess/preprocess_search_r1_dataset.py makes it"


@dataclass(frozen=True)
class SearchSpec:
    """The settings of the benchmark; picklable.

    Attributes:
        train_data: file with the training questions (split ``train``); None if there is none.
        test_data: file with the questions to evaluate on (split ``test``); None if there is none.
        retriever_urls: one or more replicas of the retriever, such as ``http://127.0.0.1:8000``.
        top_k: passages per query.
        retrieval_timeout: seconds for one search with all its retries; past it the episode is lost.
        max_turns: turns after which an episode is over; the search of the last turn is not executed.
        history_length: most turns of history in a prompt.
        success_reward: reward of an exact match.
        invalid_action_penalty: subtracted for each response that breaks the format.
        inadmissible_is_invalid: without effect, as every action is admissible here.
        observation_form: how passages are shown, see ``observations``.
        prompt_profile: ``full`` wording for language models, ``compact`` for the embedded tiny policy.
    """

    train_data: str | None
    test_data: str | None
    retriever_urls: tuple[str, ...]
    top_k: int = 3
    retrieval_timeout: float = 60.0
    max_turns: int = 4
    history_length: int = 4
    success_reward: float = 1.0
    invalid_action_penalty: float = 0.01
    inadmissible_is_invalid: bool = False
    observation_form: ObservationForm = "json"
    prompt_profile: prompts.PromptProfile = "full"
    name: str = "search"

    def __post_init__(self) -> None:
        for field, value, least in (
            ("max_turns", self.max_turns, 1),
            ("history_length", self.history_length, 0),
            ("top_k", self.top_k, 1),
        ):
            if value < least:
                raise ValueError(f"{field} is {value}; it must be at least {least}")
        for field, text, choices in (
            ("prompt_profile", self.prompt_profile, get_args(prompts.PromptProfile)),
            ("observation_form", self.observation_form, get_args(ObservationForm)),
        ):
            if text not in choices:
                raise ValueError(f"{field} is {text!r}; choose one of {', '.join(choices)}")
        if self.prompt_profile == "compact" and self.observation_form != "plain":
            raise ValueError("prompt_profile='compact' shortens plain observations: set observation_form='plain'")

    def make(self) -> SearchEnv:
        """A new slot that searches with blocking calls, for tools and benchmarks."""
        from agent_system.environments.search.env import SearchEnv

        return SearchEnv(self.client(), self.top_k, self.max_turns, self.observation_form)

    def open_sessions(self, slots: int) -> SearchPool:
        """Slots for asyncio programs, in the calling process."""
        from agent_system.environments.search.sessions import SearchPool

        return SearchPool(self.client(), slots, top_k=self.top_k, max_turns=self.max_turns, form=self.observation_form)

    def client(self) -> RetrieverClient:
        """A new client of the retriever. Raises ValueError for an address that is none."""
        from agent_system.retrieval.client import RetrieverClient

        return RetrieverClient(self.retriever_urls, top_k=self.top_k, timeout_s=self.retrieval_timeout)

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
        """The questions of ``train`` or ``test``, sorted by id.

        Raises FileNotFoundError with the remedy where there is no file, ValueError for one that cannot be used.
        """
        files = {
            "train": (self.train_data, "env.train_data", _BUILDERS),
            "test": (self.test_data, "env.test_data", _PREPROCESS),
        }
        if split not in files:
            raise ValueError(f"search has no split {split!r}; there are {' and '.join(files)}")
        path, setting, remedy = files[split]
        if path is None:
            raise FileNotFoundError(f"{setting} is not set: it names the file of the {split} questions ({remedy})")
        try:
            return index.load(Path(path).expanduser(), split)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{setting}: {error} with the {split} questions ({remedy})") from error
