"""The tokenizer of the search policy: every word of a name and every turn of phrase of the generated world is one token."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from transformers import Qwen2Tokenizer

from agent_system.environments.search.generator.names import PIECES
from agent_system.environments.search.generator.world import FACTS, QUESTION_KINDS
from rsipo.embedded.search_player import ANSWER, GUESS, VAGUE_SKILL, procedure
from rsipo.embedded.tokenizer import build_tokenizer

_FIXED = (
    "user\n", "assistant\n", "Task:", "\nSkill:", "\n> search", "\n> answer", "\n> nothing",
    "</think><search>", "</think><answer>", "</search>", "</answer>", "<search>", "<answer>", "<think>", "</think>",
    " No search results found.",
    '{"episode_summary": "done:', '{"episode_summary": "failed:', '", "episode_skill": "', '"}',
    "\nResult: success\nWrite the procedure. JSON.", "\nResult: failure\nWrite the rule. JSON.",
)  # fmt: skip
_SLOT = re.compile(r"\{\w*\}")


def train_search_tokenizer(texts: Sequence[str]) -> Qwen2Tokenizer:
    """A tokenizer for these prompts and answers. What is no phrase and no name is left to the BPE."""
    found = phrases()
    known = re.compile("|".join(map(re.escape, sorted(found, key=len, reverse=True))))
    parts = (part for text in texts for part in known.split(text) if part)
    return build_tokenizer(parts, found, vocabulary=512)


def phrases() -> list[str]:
    """All texts that become single tokens, without repetition, in a fixed order."""
    thoughts = [f"<think>{thought}" for thought in (GUESS, ANSWER, *(f"find {relation}" for relation in FACTS))]
    words = [f" {word}" for lists in PIECES.values() for words in lists for word in words]
    return list(dict.fromkeys([*_FIXED, *thoughts, *words, *_phrases_of_templates(), *_phrases_of_skills()]))


def _phrases_of_templates() -> Iterator[str]:
    for template in (*(kind.template for kind in QUESTION_KINDS), *(sentence for _, sentence in FACTS.values())):
        first, *rest = _SLOT.split(template)
        yield from [f" {first.strip()}"] if first.strip() else []
        # Without the space after it, which belongs to the name's first word.
        yield from (part.rstrip() for part in rest if part.strip(" ."))


def _phrases_of_skills() -> Iterator[str]:
    """A skill's clauses; its first one stands after a quote in the answer and after a space in a prompt."""
    for skill in (VAGUE_SKILL, *(procedure(kind) for kind in QUESTION_KINDS)):
        first, *rest = skill.split(", ")
        yield from (first, f" {first}", *(f", {clause}" for clause in rest))
