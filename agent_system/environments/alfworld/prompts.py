"""The two prompt profiles: ``full`` for language models, ``compact`` for models of a million parameters.

Both show the same things: the task, the skill (teacher only, right after the task), the last turns (none at turn one),
the current observation and the admissible actions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from agent_system.environments.base import PromptContext

PromptProfile = Literal["full", "compact"]

_TASK_SENTENCE = re.compile(r"Your task is to: (.*)")
_BANNER = "-= Welcome to TextWorld, ALFRED! =-"
_ROOM = re.compile(r"You are in the middle of a room\. Looking quickly around you, you see (.*)")
_COMPACT_HIDDEN = frozenset({"help", "inventory", "look"})
_COMPACT_HIDDEN_STARTS = ("examine ", "close ")


def task_sentence(feedback: str) -> str:
    """The task in the engine's first feedback, such as ``put a hot mug in cabinet.``; empty when there is none."""
    found = _TASK_SENTENCE.search(feedback)
    return found.group(1).strip() if found else ""


def clean_observation(feedback: str) -> str:
    """The engine's feedback without the banner and without the task sentence, which a prompt states by itself."""
    return _TASK_SENTENCE.sub("", feedback.replace(_BANNER, "")).strip()


def render(
    profile: PromptProfile, context: PromptContext, *, skill: str | None, history_length: int
) -> list[dict[str, str]]:
    """One user message. ``history_length`` is the most turns of history shown; 0 shows none."""
    history = context.history[-history_length:] if history_length > 0 else ()
    text = (_compact if profile == "compact" else _full)(context, history, skill)
    return [{"role": "user", "content": text}]


def _full(context: PromptContext, history: Sequence[tuple[str, str]], skill: str | None) -> str:
    parts = [
        "You act in a household that is described to you in text, one action at a time.\n"
        f"Your task is to: {context.instruction}"
    ]
    if skill:
        parts.append(f"## Skill from earlier experience with this task\n{skill}")
    if history:
        first = context.step - len(history)
        turns = [
            f"[Step {step}] Observation: {observation}\n[Step {step}] Action: {action}"
            for step, (observation, action) in enumerate(history, start=first)
        ]
        taken = context.step - 1
        parts.append(
            f"You have taken {taken} {'step' if taken == 1 else 'steps'} so far. "
            f"The latest {len(history)} with what you saw and did:\n" + "\n".join(turns)
        )
    actions = "\n".join(f"- {action}" for action in context.observation.admissible_actions)
    parts.append(f"This is step {context.step}. Your current observation: {context.observation.text}")
    parts.append(f"The actions you can take now:\n{actions}")
    parts.append(
        "Decide what to do next. First reason step by step about the situation between <think> and </think>. "
        "Then choose exactly one of the listed actions and write it between <action> and </action>."
    )
    return "\n\n".join(parts)


def _compact(context: PromptContext, history: Sequence[tuple[str, str]], skill: str | None) -> str:
    lines = [f"Task: {context.instruction}"]
    if skill:
        lines.append(f"Skill: {skill}")
    for observation, action in history:
        lines += [short_observation(observation), f"> {action}"]
    actions = (a for a in context.observation.admissible_actions if not _hidden(a))
    lines += [f"Now: {short_observation(context.observation.text)}", "Actions: " + " ".join(actions)]
    return "\n".join(lines)


def short_observation(observation: str) -> str:
    """The compact profile's form of an observation: the first one is just what there is to see."""
    return _ROOM.sub(r"You see \1", observation)


def _hidden(action: str) -> bool:
    return action in _COMPACT_HIDDEN or action.startswith(_COMPACT_HIDDEN_STARTS)
