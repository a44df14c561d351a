"""What a rollout produces. Plain picklable records; token ids and log-probabilities travel as numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from agent_system.environments.base import PromptContext

EpisodeStatus = Literal["ok", "failed", "timeout"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings of one generation. ``seed`` makes a request reproducible on backends that honour it.

    ``temperature`` 0 is greedy. ``max_tokens`` is the response budget in tokens.
    """

    temperature: float
    max_tokens: int
    seed: int | None = None

    def params(self) -> dict[str, Any]:
        """As the rollout servers take them; a fresh dict each time, because a server may edit it."""
        values: dict[str, Any] = {"temperature": self.temperature, "max_tokens": self.max_tokens, "logprobs": True}
        if self.seed is not None:
            values["seed"] = self.seed
        return values


class TokenOutput(Protocol):
    """The shape of a rollout server's answer. ``stop_reason``: completed | aborted | length."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None
    extra_fields: dict[str, Any]


class LLMClient(Protocol):
    """The policy behind a rollout server. Token ids in, token ids out: nothing is ever re-encoded."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> TokenOutput: ...


@dataclass(slots=True)
class Generation:
    """One answer of the policy.

    Attributes:
        prompt_ids: int32 [P], the exact prompt.
        response_ids: int32 [R], the end-of-turn token included when the model produced it.
        log_probs: float32 [R], of the sampled tokens at the sampling temperature.
        text: the response decoded without special tokens.
        finished: generation ended by itself (not cut by the token limit, not aborted).
        weights_version: the training step whose weights produced it; -1 when the server does not say.
    """

    prompt_ids: np.ndarray
    response_ids: np.ndarray
    log_probs: np.ndarray
    text: str
    finished: bool
    weights_version: int = -1


@dataclass(slots=True)
class Turn:
    """One turn = one training sample: its own prompt and its own response.

    ``action_valid`` is what the penalty looks at; ``admissible`` whether the environment knew the action.
    ``teacher_prompt_ids`` (int32 [P']) is the same turn's prompt with the skill block, once a skill exists.
    """

    context: PromptContext
    generation: Generation
    action: str
    action_valid: bool
    admissible: bool
    teacher_prompt_ids: np.ndarray | None = None


@dataclass(slots=True)
class Episode:
    """One episode. ``status`` other than ``ok`` means it was lost to infrastructure and leaves its group.

    ``bad_task``: it was lost because its task can never be played.
    """

    task_id: str
    index: int
    status: EpisodeStatus
    success: bool
    turns: list[Turn]
    fingerprint: str
    instruction: str = ""
    final_observation: str = ""
    error: str = ""
    bad_task: bool = False
    seconds: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_turns(self) -> int:
        return len(self.turns)

    @property
    def invalid_actions(self) -> int:
        return sum(not turn.action_valid for turn in self.turns)
