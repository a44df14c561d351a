"""A stand-in for a rollout server that answers from a script, for tests and benchmarks. No model runs behind it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from agent_system.rollout.prompting import Prompter


@dataclass(frozen=True, slots=True)
class Request:
    """What a script sees: the server's arguments, and the prompt decoded."""

    request_id: str
    prompt: str
    temperature: float
    max_tokens: int
    seed: int | None

    @property
    def purpose(self) -> str:
        """The end of the request id: ``student/3`` for an episode, ``skill/3`` for the skill of a rollout."""
        return "/".join(self.request_id.rsplit("/", 2)[-2:])


@dataclass(slots=True)
class ScriptedOutput:
    """As a rollout server answers."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None = "completed"
    extra_fields: dict[str, Any] = field(default_factory=dict)


class ScriptedPolicy:
    """An ``LLMClient`` whose answers come from ``script``.

    Args:
        prompter: its tokenizer encodes the answers, which end with the end-of-turn token unless cut by ``max_tokens``.
        script: request to answer, may be a coroutine function. May raise, to play a broken server.
        seconds_per_token: simulated latency of a generated token.
        version: training step that the answers claim as their weights' version.
    """

    def __init__(
        self,
        prompter: Prompter,
        script: Callable[[Request], str | Awaitable[str]],
        *,
        seconds_per_token: float = 0.0,
        version: int = 0,
    ):
        self.prompter = prompter
        self.script = script
        self.seconds_per_token = seconds_per_token
        self.version = version

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> ScriptedOutput:
        tokenizer = self.prompter.tokenizer
        limit = sampling_params["max_tokens"]
        answer = self.script(
            Request(
                request_id,
                prompt=self.prompter.decode(prompt_ids),
                temperature=sampling_params["temperature"],
                max_tokens=limit,
                seed=sampling_params.get("seed"),
            )
        )
        text = await answer if inspect.isawaitable(answer) else answer
        ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id][:limit]
        await asyncio.sleep(self.seconds_per_token * len(ids))
        return ScriptedOutput(ids, [-0.5] * len(ids), extra_fields={"global_steps": self.version})
