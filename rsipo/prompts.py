"""The analysis prompt: one finished episode in, a summary and a reusable skill out, as JSON.

Same content as the paper's Figure 8, own wording. ``compact`` is for the embedded policy, which was warm-started on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from agent_system.environments.alfworld import prompts as alfworld
from agent_system.environments.search import prompts as search
from agent_system.rollout.types import Episode, Turn
from rsipo.settings import did_you_mean

PromptProfile = Literal["full", "compact"]
Messages = list[dict[str, str]]

ANALYSIS_PROMPT_VERSION: dict[PromptProfile, str] = {"full": "analysis-full-1", "compact": "analysis-compact-1"}
"""Names the template in every audit record. Change it with any change of the wording."""

BENCHMARKS = ("alfworld", "search")

_ROLE = (
    "You are reviewing one finished episode of an agent that solves tasks by acting in an environment, one action per "
    "turn. Work out what decided the result, and distil from it one skill that the same agent can follow the next time "
    "it meets this kind of task."
)
# The placeholders are too short to pass as skills, should a model copy them.
_FORMAT = (
    "Answer with one JSON object and nothing else, no text before or after it and no code fence:\n"
    '{"episode_summary": "<two sentences>", "episode_skill": "<the skill>"}'
)
_AFTER_SUCCESS = (
    "The agent succeeded. In `episode_summary`, say briefly how. In `episode_skill`, give the reusable procedure "
    "behind this success: what to decide by, which steps in which order, and what to check on the way."
)
_AFTER_FAILURE = (
    "The agent failed. In `episode_summary`, say briefly where it went wrong. In `episode_skill`, give the rule that "
    "would have avoided this failure: the mistake at its root, the signs that it is about to happen, and what to do "
    "instead."
)
_KIND_OF_SKILL = (
    "Address the skill to the agent, as a short instruction it can act on; do not retell the episode turn by turn."
)
_ON_SEARCH = (
    "The skill must be a general strategy for searching and answering questions of this kind. It must neither state "
    "nor hint at the answer to this question, and must not copy text from the retrieved documents."
)


class AnalysisPromptTooLong(ValueError):
    """Task, outcome and instruction alone exceed the budget."""


def analysis_messages(
    episode: Episode, *, benchmark: str, profile: PromptProfile = "full", repeat_format: bool = False
) -> Messages:
    """The chat messages (one, from the user) that ask for the skill of a whole episode.

    Args:
        episode: finished, with at least one turn.
        benchmark: ``alfworld`` or ``search``; search asks for a general strategy that does not leak the answer.
        profile: wording. ``compact`` ignores ``repeat_format``.
        repeat_format: restate the output format after the trajectory; on search only, as in the paper.

    Raises:
        ValueError: unknown benchmark or profile.
    """
    return _messages(episode, benchmark, profile, repeat_format, shortened=0, omitted=0)


def fit_analysis_messages(
    episode: Episode,
    *,
    max_tokens: int,
    count_tokens: Callable[[Messages], int],
    benchmark: str,
    profile: PromptProfile = "full",
    repeat_format: bool = False,
) -> Messages:
    """As ``analysis_messages``, within ``max_tokens`` as counted by ``count_tokens``.

    The oldest turns are first shortened to their action, then left out, no more of them than needed. Task, outcome and
    instruction always stay. Raises AnalysisPromptTooLong where they alone are too long.
    """
    turns = episode.num_turns

    def reduced(reductions: int) -> Messages:
        shortened, omitted = min(reductions, turns), max(0, reductions - turns)
        return _messages(episode, benchmark, profile, repeat_format, shortened=shortened, omitted=omitted)

    fewest, most = 0, 2 * turns
    messages = reduced(fewest)
    if count_tokens(messages) <= max_tokens:
        return messages
    messages = reduced(most)
    if (needed := count_tokens(messages)) > max_tokens:
        raise AnalysisPromptTooLong(
            f"the analysis prompt of task {episode.task_id} needs {needed} tokens even without its turns, "
            f"more than skill.max_prompt_length={max_tokens}: raise it"
        )
    while most - fewest > 1:
        middle = (fewest + most) // 2
        candidate = reduced(middle)
        if count_tokens(candidate) <= max_tokens:
            most, messages = middle, candidate
        else:
            fewest = middle
    return messages


def _messages(
    episode: Episode, benchmark: str, profile: PromptProfile, repeat_format: bool, *, shortened: int, omitted: int
) -> Messages:
    """The ``omitted`` oldest turns are left out, those after them up to the ``shortened``-th show the action only."""
    if benchmark not in BENCHMARKS:
        raise ValueError(f"unknown benchmark {benchmark!r}{did_you_mean(benchmark, BENCHMARKS)}")
    if profile not in ANALYSIS_PROMPT_VERSION:
        raise ValueError(f"unknown prompt profile {profile!r}{did_you_mean(profile, ANALYSIS_PROMPT_VERSION)}")
    if profile == "compact":
        text = _compact(episode, benchmark, shortened, omitted)
    else:
        text = _full(episode, benchmark, repeat_format, shortened, omitted)
    return [{"role": "user", "content": text}]


def _full(episode: Episode, benchmark: str, repeat_format: bool, shortened: int, omitted: int) -> str:
    turns = [
        _full_turn(number, turn, brief=number <= shortened)
        for number, turn in enumerate(episode.turns, start=1)
        if number > omitted
    ]
    if omitted:
        turns.insert(0, f"(Left out here: turns 1 to {omitted}.)")
    if episode.final_observation:
        turns.append(f"After the last turn:\nObservation: {episode.final_observation}")
    outcome = "success" if episode.success else "failure"
    parts = [
        _ROLE,
        _FORMAT,
        f"## Task\n{episode.instruction}",
        f"## Outcome\n{outcome} after {episode.num_turns} {'turn' if episode.num_turns == 1 else 'turns'}",
        "## Trajectory\n" + "\n\n".join(turns),
        "## What to write\n" + (_AFTER_SUCCESS if episode.success else _AFTER_FAILURE) + "\n" + _KIND_OF_SKILL,
    ]
    if benchmark == "search":
        parts.append(_ON_SEARCH)
    parts.append(_FORMAT if repeat_format and benchmark == "search" else "Answer with the JSON object only.")
    return "\n\n".join(parts)


def _full_turn(number: int, turn: Turn, *, brief: bool) -> str:
    action = f"Action: {turn.action} ({_validity(turn)})"
    if brief:
        return f"Turn {number}\n{action}"
    observation = turn.context.observation.text
    seen = f"Observation: {observation}\n" if observation else ""
    return f"Turn {number}\n{seen}Response: {turn.generation.text}\n{action}"


def _validity(turn: Turn) -> str:
    if not turn.action_valid:
        return "invalid: the response broke the format"
    return "valid" if turn.admissible else "invalid: not possible at that moment"


def _compact(episode: Episode, benchmark: str, shortened: int, omitted: int) -> str:
    short_observation = search.short_observation if benchmark == "search" else alfworld.short_observation
    short_action = search.short_action if benchmark == "search" else str
    lines = [f"Task: {episode.instruction}"]
    for number, turn in enumerate(episode.turns, start=1):
        if number <= omitted:
            continue
        if number > shortened and (observation := turn.context.observation.text):
            lines.append(short_observation(observation))
        lines.append(f"> {short_action(turn.action)}" + ("" if turn.action_valid and turn.admissible else " (invalid)"))
    lines.append(f"Result: {'success' if episode.success else 'failure'}")
    lines.append("Write the procedure. JSON." if episode.success else "Write the rule. JSON.")
    return "\n".join(lines)
