from __future__ import annotations

import random

import pytest

from agent_system.environments.alfworld.generator import TASK_TYPES
from agent_system.environments.alfworld.generator.tables import SENTENCES
from agent_system.environments.alfworld.spec import AlfworldSpec
from rsipo.embedded.demonstrations import play
from rsipo.embedded.formats import location_skill, locations
from rsipo.embedded.player import Goal, parse_goal, sightings


def test_every_sentence_of_the_generator_is_understood() -> None:
    place, look, clean, heat, cool, two = (
        [parse_goal(sentence.format(object="mug", receptacle="desk")) for sentence in SENTENCES[kind]]
        for kind in TASK_TYPES
    )
    assert place == [Goal("mug", "desk")] * 2
    assert look == [Goal("mug", "desklamp")] * 2
    assert clean == [Goal("mug", "desk", "clean")] * 2
    assert heat == [Goal("mug", "desk", "heat")] * 2
    assert cool == [Goal("mug", "desk", "cool")] * 2
    assert two == [Goal("mug", "desk", two=True)] * 2


def test_a_foreign_sentence_is_refused() -> None:
    with pytest.raises(ValueError, match="open the pod bay doors"):
        parse_goal("open the pod bay doors")


def test_sightings() -> None:
    open_door = "You open the drawer 1. The drawer 1 is open. In it, you see a pen 2, and a mug 1."
    assert sightings(open_door) == {"pen 2": "drawer 1", "mug 1": "drawer 1"}
    assert sightings("You arrive at desk 1. On the desk 1, you see nothing.") == {}


def test_the_player_wins_most_games_and_all_with_locations(spec: AlfworldSpec) -> None:
    environment, plain, guided = spec.make(), [], []
    for task in spec.tasks("valid_unseen"):
        episode = play(environment, task, 30, random.Random(task.task_id), noise=0.0)
        plain.append(episode.success and episode.num_turns <= spec.max_turns)
        seen = [turn.context.observation.text for turn in episode.turns]
        skill = location_skill(parse_goal(episode.instruction), seen)
        assert skill is not None
        episode = play(environment, task, spec.max_turns, random.Random(1), noise=0.0, known=locations(skill))
        guided.append(episode.success)
        assert all(turn.admissible for turn in episode.turns)
    assert sum(plain) >= 0.7 * len(plain)
    assert sum(guided) >= 0.9 * len(guided)
