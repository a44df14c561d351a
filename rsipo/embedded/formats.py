"""The texts a demonstration answers with: the policy's response, and the skill written after an episode."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from rsipo.embedded.player import LAMP, TREATMENTS, Goal, kind, sightings

_LOCATION = re.compile(r"(\w+(?: \d+)?) is in (\w+ \d+)")


def response(thought: str, action: str) -> str:
    """A turn's response. The space keeps the action's tokens the same as in the list of admissible actions."""
    return f"<think>{thought}</think><action> {action}</action>"


def locations(skill: str) -> dict[str, str]:
    """The locations a skill gives away: ``{"mug 1": "desk 2"}``."""
    return dict(_LOCATION.findall(skill))


def location_skill(goal: Goal, observations: Sequence[str]) -> str | None:
    """A skill that tells where the sought things were first seen, or None when they never were."""
    first: dict[str, str] = {}
    for text in observations:
        for item, place in sightings(text).items():
            if kind(item) in (goal.thing, LAMP) and not (goal.two and kind(place) == goal.goal):
                first.setdefault(item, place)
    things = [f"{item} is in {place}" for item, place in first.items() if kind(item) == goal.thing][:2]
    lamps = [f"{LAMP} is in {place}" for item, place in first.items() if kind(item) == LAMP][:1]
    parts = things + (lamps if goal.needs_lamp else [])
    if not parts:
        return None
    if goal.treatment:
        parts.append(f"{goal.treatment} it with {TREATMENTS[goal.treatment]}")
    return ", ".join([*parts, _finish(goal)])


def vague_skill(goal: Goal) -> str:
    """A skill that is true of every room and so helps in none."""
    treat = f"{goal.treatment} it, " if goal.treatment else ""
    return f"look in every place with care, take the {goal.thing}, {treat}{_finish(goal)}"


def analysis(instruction: str, skill: str, *, success: bool) -> str:
    """The answer to the analysis prompt."""
    summary = f"{'done' if success else 'failed'}: {instruction}"
    return json.dumps({"episode_summary": summary, "episode_skill": skill})


def _finish(goal: Goal) -> str:
    return f"use the {LAMP}." if goal.needs_lamp else f"put it in {goal.goal}."
