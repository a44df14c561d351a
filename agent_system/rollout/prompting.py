"""Chat messages to token ids, within a length budget that never cuts the task or the skill."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agent_system.environments.base import EnvironmentSpec, PromptContext

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Messages = list[dict[str, str]]


class PromptTooLong(ValueError):
    """A prompt exceeds its budget even without history. Sizes in tokens; ``setting`` names the setting to raise."""

    def __init__(self, what: str, tokens: int, limit: int, setting: str):
        super().__init__(f"{what} has {tokens} tokens even without history; {setting}={limit}: raise it")
        self.what, self.tokens, self.limit, self.setting = what, tokens, limit, setting

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.tokens, self.limit, self.setting)


@dataclass(frozen=True)
class Prompter:
    """Renders, tokenizes and decodes for one policy. Picklable: the tokenizer is loaded where it is first used.

    Attributes:
        tokenizer_path: folder (or hub name) of a tokenizer with a chat template.
        max_prompt_tokens: budget of a student prompt, in tokens.
        max_teacher_prompt_tokens: budget of a teacher prompt (the same prompt with a skill), in tokens.
        chat_template_kwargs: passed to the chat template, e.g. ``{"enable_thinking": False}`` for Qwen3.
    """

    tokenizer_path: str
    max_prompt_tokens: int
    max_teacher_prompt_tokens: int
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        from transformers import AutoTokenizer  # imports torch, which takes seconds

        return AutoTokenizer.from_pretrained(self.tokenizer_path)

    @cached_property
    def stop_token_ids(self) -> frozenset[int]:
        """The ids that end a response: the tokenizer's, and those of a ``generation_config.json`` beside it."""
        ids = {self.tokenizer.eos_token_id}
        config = Path(self.tokenizer_path) / "generation_config.json"
        if config.is_file():
            listed = json.loads(config.read_text(encoding="utf-8")).get("eos_token_id")
            ids.update(listed if isinstance(listed, list) else [listed])
        return frozenset(ids - {None})

    def encode(self, messages: Messages) -> np.ndarray:
        """The prompt's token ids, int32 [P], ending where the assistant's answer begins."""
        ids = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **self.chat_template_kwargs
        )
        return np.asarray(ids, dtype=np.int32)

    def decode(self, token_ids: Sequence[int]) -> str:
        """A response as text, without special tokens and with its spaces as they are."""
        ids = list(token_ids)
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def student_prompt(self, spec: EnvironmentSpec, context: PromptContext) -> np.ndarray:
        """The prompt of one turn, int32 [P]; the oldest history turns are dropped where it would be too long.

        Raises:
            PromptTooLong: it does not fit even without history.
        """
        return self._fit(spec, context, None, "the prompt", self.max_prompt_tokens, "prompt.max_prompt_length")

    def teacher_prompt(self, spec: EnvironmentSpec, context: PromptContext, skill: str) -> np.ndarray:
        """The same turn's prompt with the skill block, int32 [P']; task and skill are kept whole, as above.

        Raises:
            PromptTooLong: it does not fit even without history.
        """
        limit = self.max_teacher_prompt_tokens
        return self._fit(spec, context, skill, "the teacher prompt", limit, "prompt.max_teacher_prompt_length")

    def _fit(
        self, spec: EnvironmentSpec, context: PromptContext, skill: str | None, what: str, limit: int, setting: str
    ) -> np.ndarray:
        longest = min(spec.history_length, len(context.history))
        for history_length in range(longest, -1, -1):
            ids = self.encode(spec.messages(context, skill=skill, history_length=history_length))
            if len(ids) <= limit:
                return ids
        raise PromptTooLong(what, len(ids), limit, setting)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
