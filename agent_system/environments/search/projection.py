"""From a response to an action: one ``<search>…</search>`` or one ``<answer>…</answer>``, by verl-agent's rules.

The extraction and the verdict on the format are independent of each other: what an invalid response says is executed all
the same, and the penalty teaches the format. ``<think>`` is asked for and not checked.
"""

from __future__ import annotations

import re

from agent_system.environments.base import Action

_FLAGS = re.IGNORECASE | re.DOTALL
_SEARCH = re.compile(r"<search>(.*?)</search>", _FLAGS)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", _FLAGS)


def project(response: str) -> Action:
    """The action of a response, with its tags in lower case; empty where the response has no complete block.

    All that follows the first ``</search>``, or else the first ``</answer>``, is cut off, so a search wins over an answer
    before it that is not closed by then. Of what is left the first complete search block counts, else the first answer block.
    """
    kept = _cut(response)
    text = ""
    if found := _SEARCH.search(kept):
        text = f"<search>{found.group(1).strip()}</search>"
    elif found := _ANSWER.search(kept):
        text = f"<answer>{found.group(1).strip()}</answer>"
    reason = _format_error(response.lower(), text)
    return Action(text, valid=not reason, reason=reason)


def query_of(action: str) -> str | None:
    """The query of a projected action, None where it does not search."""
    found = _SEARCH.search(action)
    return found.group(1).strip() if found else None


def answer_of(action: str) -> str | None:
    """The answer of a projected action (the last one, should a query hold some), None where it does not answer."""
    found = _ANSWER.findall(action)
    return found[-1].strip() if found else None


def _cut(response: str) -> str:
    for tag in ("</search>", "</answer>"):
        # re, not str.find on the lower-cased text: some letters change their length in lower case.
        if found := re.search(tag, response, re.IGNORECASE):
            return response[: found.end()]
    return response


def _format_error(response: str, action: str) -> str:
    searches, answers = response.count("<search>"), response.count("<answer>")
    if not action:
        return "no complete <search> or <answer> block"
    if searches and answers:
        return "both <search> and <answer>"
    if searches > 1 or answers > 1:
        return f"{max(searches, answers)} times {'<search>' if searches else '<answer>'}"
    return ""
