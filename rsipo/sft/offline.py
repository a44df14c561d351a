"""An annotator without an LLM: templates over the trajectory. It serves the embedded policies, and tests."""

from __future__ import annotations

from agent_system.rollout.types import Episode
from rsipo.embedded import formats
from rsipo.embedded.player import parse_goal
from rsipo.embedded.search_player import parse_question, procedure

NAME = "offline-templates-1"
"""Names the annotator in every record. Change it with any change of the templates."""

_SHOWN_ACTIONS = 8


def annotate(episode: Episode, benchmark: str) -> str:
    """The answer to the analysis prompt: JSON with ``episode_summary`` and ``episode_skill``.

    On ALFWorld the skill tells where the sought things were seen; on generated questions it is the procedure that leads to the
    answer. A task of any other wording gets the actions that worked, or a warning of those that did not.
    """
    try:
        skill = _alfworld(episode) if benchmark == "alfworld" else procedure(parse_question(episode.instruction).kind)
    except ValueError:  # the task is worded in another way
        skill = _any(episode)
    return formats.analysis(episode.instruction, skill, success=episode.success)


def _alfworld(episode: Episode) -> str:
    goal = parse_goal(episode.instruction)
    seen = [*(turn.context.observation.text for turn in episode.turns), episode.final_observation]
    return formats.location_skill(goal, seen) or formats.vague_skill(goal)


def _any(episode: Episode) -> str:
    worked = [turn.action for turn in episode.turns if turn.action_valid and turn.admissible]
    if episode.success:
        return f"Do this in the same order: {'; '.join(worked[-_SHOWN_ACTIONS:])}."
    failed = [turn.action for turn in episode.turns if not (turn.action_valid and turn.admissible)]
    if failed:
        return f"Keep to the required format and to possible actions; this was refused: {failed[0]}."
    return f"Do not go on as in this failed attempt: {'; '.join(worked[:_SHOWN_ACTIONS])}."
