"""Reading the policy's analysis: the skill in it, whether it is valid, and which response tokens spell it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from agent_system.environments.search.answers import normalise
from rsipo.json_spans import SpannedString, objects
from rsipo.settings import SkillSettings

SUMMARY_KEY = "episode_summary"
SKILL_KEY = "episode_skill"

InvalidReason = Literal[
    "",
    "cut_off",  # the token limit or an abort ended the generation
    "no_json",  # no object in the text
    "no_skill",  # no object with an episode_skill
    "not_a_string",
    "empty",
    "too_short",  # fewer than SkillSettings.min_words words
    "broken_unicode",  # half a surrogate pair
    "answer_leak",  # only with SkillSettings.reject_leaks
]

Decode = Callable[[Sequence[int]], str]
"""Token ids to text: no special tokens, no clean-up of spaces."""


@dataclass(frozen=True, slots=True)
class Skill:
    """What was read from one analysis.

    Attributes:
        text: the skill, stripped; empty where none could be read.
        valid: whether it may teach; ``reason`` says why not.
        summary: the episode summary, empty if there is none.
        span: [start, end) of the ``episode_skill`` value in the response text, None where there is none.
        leaks_answer: whether it holds one of the gold answers.
    """

    text: str
    valid: bool
    reason: InvalidReason
    summary: str = ""
    span: tuple[int, int] | None = None
    leaks_answer: bool = False


def read_skill(text: str, *, finished: bool, settings: SkillSettings, answers: Sequence[str] = ()) -> Skill:
    """Read an analysis.

    Args:
        text: the response without special tokens.
        finished: the generation ended by itself.
        settings: ``min_words`` and ``reject_leaks`` are used.
        answers: gold answers of a search task, to detect leaks; empty elsewhere.
    """
    found = _find(text, settings.min_words)
    if isinstance(found, str):
        return Skill("", False, found if finished else "cut_off")
    skill, summary = found
    stripped = skill.value.strip()
    if not encodable(stripped):
        return Skill("", False, "broken_unicode" if finished else "cut_off", span=skill.span)
    leaks = leaks_answer(stripped, answers)
    reason: InvalidReason = ""
    if not finished:
        reason = "cut_off"
    elif not stripped:
        reason = "empty"
    elif len(stripped.split()) < settings.min_words:
        reason = "too_short"
    elif leaks and settings.reject_leaks:
        reason = "answer_leak"
    return Skill(stripped, not reason, reason, summary, skill.span, leaks)


def read_skill_tokens(
    response_ids: Sequence[int],
    decode: Decode,
    *,
    finished: bool,
    settings: SkillSettings,
    answers: Sequence[str] = (),
) -> tuple[Skill, np.ndarray]:
    """As ``read_skill``, from the sampled tokens, with the mask of eq. (9).

    Returns:
        The skill and a bool mask [R]: for a valid output the tokens that hold at least one character of the
        ``episode_skill`` string value, for an invalid one all tokens.
    """
    text, spans = token_spans(response_ids, decode)
    skill = read_skill(text, finished=finished, settings=settings, answers=answers)
    if not skill.valid or skill.span is None:
        return skill, np.ones(len(spans), dtype=bool)
    start, end = skill.span
    return skill, (spans[:, 0] < end) & (spans[:, 1] > start) & (spans[:, 0] < spans[:, 1])


def token_spans(ids: Sequence[int], decode: Decode) -> tuple[str, np.ndarray]:
    """The text of ``ids`` and the characters each token contributes to, from incremental decoding.

    Returns:
        The text, and int64 [R, 2] with [start, end) per token. Neighbours overlap where a character's bytes are spread
        over several tokens; a special token's span is empty.
    """
    ids = [int(token) for token in ids]
    spans = np.zeros((len(ids), 2), dtype=np.int64)
    text = ""  # of all tokens before ``begin``; complete characters only
    context = begin = skip = 0  # each decode starts one piece early: some decoders treat the first token differently
    before = ""
    for index in range(len(ids)):
        after = decode(ids[context : index + 1])[skip:]
        # U+FFFD at the end stands for a character whose bytes are not all there yet: it is open.
        opened, is_open = _open_character(before), after.endswith("\ufffd")
        if opened is not None and len(after) > opened + 1 and after[opened] == "\ufffd":
            opened += 1  # it was never completed; this token has no part in it
        start = len(before) if opened is None else opened
        spans[index] = (len(text) + min(start, len(after)), len(text) + len(after))
        before = after
        if not is_open:
            text += after
            context, begin, before = begin, index + 1, ""
            skip = len(decode(ids[context:begin]))
    return text + before, spans


def leaks_answer(skill: str, answers: Sequence[str]) -> bool:
    """Whether a gold answer stands in the skill, as whole words after the usual answer normalisation.

    ``yes`` and ``no`` are words of any skill and never count.
    """
    words = f" {normalise(skill)} "
    normalised = {normalise(answer) for answer in answers} - {"", "yes", "no"}
    return any(f" {answer} " in words for answer in normalised)


def _find(text: str, min_words: int) -> tuple[SpannedString, str] | InvalidReason:
    """The first skill long enough, else the first skill of all; or why there is none."""
    found: list[tuple[SpannedString, str]] = []
    reason: InvalidReason = "no_json"
    for candidate in objects(text):
        value = candidate.get(SKILL_KEY)
        if isinstance(value, SpannedString):
            summary = candidate.get(SUMMARY_KEY)
            found.append((value, summary.value.strip() if isinstance(summary, SpannedString) else ""))
            if len(value.value.split()) >= min_words:
                return found[-1]
        elif reason != "not_a_string":
            reason = "not_a_string" if SKILL_KEY in candidate else "no_skill"
    return found[0] if found else reason


def _open_character(text: str) -> int | None:
    return len(text) - 1 if text.endswith("\ufffd") else None


def encodable(text: str) -> bool:
    """Whether a text can be written: a lone surrogate from a JSON escape cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
