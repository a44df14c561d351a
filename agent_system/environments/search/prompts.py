"""The two prompt profiles: ``full`` for language models, ``compact`` for models of a million parameters.

Both show the same things: the question, the skill (teacher only, right after the question), the last turns with what each
search returned (none at turn one), and what can be done.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from agent_system.environments.base import PromptContext
from agent_system.environments.search.projection import answer_of, query_of

PromptProfile = Literal["full", "compact"]
Step = tuple[int, str, str]
"""(number of the turn, its action, what it led to)."""

_TAGS = re.compile(r"</?information>")
_HEADER = re.compile(r"^Doc \d+\(Title: .*?\) ", re.MULTILINE)


def render(
    profile: PromptProfile, context: PromptContext, *, skill: str | None, history_length: int
) -> list[dict[str, str]]:
    """One user message.

    The result of the latest search is the last entry of the history, so ``history_length`` counts it: the most turns shown
    with their results. With 0 only the present observation is left, without what led to it.
    """
    text = (_compact if profile == "compact" else _full)(context, _steps(context, history_length), skill)
    return [{"role": "user", "content": text}]


def short_observation(observation: str) -> str:
    """The compact profile's form of a ``plain`` observation: the passages' texts alone, each after a space."""
    return _HEADER.sub(" ", _TAGS.sub("", observation))


def short_action(action: str) -> str:
    """The compact profile's form of a projected action: ``search Kelo Bram``."""
    answer, query = answer_of(action), query_of(action)
    if answer is not None:
        return f"answer {answer}"
    return "nothing" if query is None else f"search {query}"


def _steps(context: PromptContext, length: int) -> list[Step]:
    """The last ``length`` turns, oldest first."""
    seen = [*(observation for observation, _ in context.history[1:]), context.observation.text]
    steps = [(n, action, after) for n, ((_, action), after) in enumerate(zip(context.history, seen, strict=False), 1)]
    return steps[-length:] if length > 0 else []


def _full(context: PromptContext, steps: Sequence[Step], skill: str | None) -> str:
    parts = [
        "You answer a question with the help of a search engine, one step at a time.\n"
        f"Your question: {context.instruction}"
    ]
    if skill:
        parts.append(f"## Skill from earlier experience with this kind of question\n{skill}")
    if steps:
        taken = context.step - 1
        parts.append(
            f"You have taken {taken} {'step' if taken == 1 else 'steps'} so far. The latest {len(steps)}, with your "
            "queries between <search> and </search> and what the search engine returned between <information> and "
            "</information>:\n" + "\n".join(f"Step {number}:{action} {after}" for number, action, after in steps)
        )
    elif context.observation.text:
        parts.append(f"The search engine's latest result: {context.observation.text}")
    parts.append(
        f"This is step {context.step}. First reason about what you know and what is missing between <think> and "
        "</think>. Then do exactly one of these two things, never both:\n"
        "(1) If you lack knowledge, write a query for the search engine between <search> and </search>.\n"
        "(2) If you know enough, write your final answer between <answer> and </answer>, without any explanation, for "
        "example <answer>Beijing</answer>."
    )
    return "\n\n".join(parts)


def _compact(context: PromptContext, steps: Sequence[Step], skill: str | None) -> str:
    lines = [f"Task: {context.instruction}"]
    if skill:
        lines.append(f"Skill: {skill}")
    for _, action, after in steps:
        lines += [f"> {short_action(action)}", *([short_observation(after)] if after else [])]
    if not steps and context.observation.text:
        lines.append(short_observation(context.observation.text))
    return "\n".join(lines)
