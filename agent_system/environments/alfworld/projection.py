"""From a response to an action: exactly one ``<think>…</think>``, then exactly one ``<action>…</action>``."""

from __future__ import annotations

import re

from agent_system.environments.base import Action

TAGS = ("<think>", "</think>", "<action>", "</action>")
FALLBACK_CHARACTERS = 30
INVALID_ACTION = "invalid action"
"""Played for an empty response: no game knows it, so nothing happens; the turn counts."""

# Chinese, Japanese and Korean scripts and their punctuation: a known way in which multilingual policies drift.
_CJK = re.compile(
    "[\u3000-\u30ff\u3130-\u318f\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f]"
)
_ACTION = re.compile(r"<action>((?:(?!</?action>).)*)</action>", re.DOTALL)


def project(response: str) -> Action:
    """The action of a response, in lower case with single spaces.

    Text around the two blocks is allowed. An invalid response still needs something to play, which is the first
    action block if there is one and the last 30 characters otherwise: the environment answers "Nothing happens." to
    anything it does not know, and the history stays short. ``reason`` says what broke the format.
    """
    block = _ACTION.search(response)
    text = _normalise(block.group(1)) if block else ""
    fallback = _normalise(response[-FALLBACK_CHARACTERS:]) or INVALID_ACTION
    reason = _format_error(response, text)
    return Action(text=text or fallback, valid=not reason, reason=reason)


def _normalise(text: str) -> str:
    return " ".join(text.lower().split())


def _format_error(response: str, action: str) -> str:
    for tag in TAGS:
        count = response.count(tag)
        if count != 1:
            return f"missing {tag}" if count == 0 else f"{count} times {tag}"
    positions = [response.index(tag) for tag in TAGS]
    if positions != sorted(positions):
        return "tags out of order"
    if not action:
        return "empty action"
    if _CJK.search(response):
        return "CJK characters"
    return ""
