from __future__ import annotations

import json
import re

from agent_system.environments.alfworld.spec import AlfworldSpec
from rsipo.embedded.demonstrations import Behaviour, Demonstration, demonstrate
from rsipo.embedded.formats import locations
from rsipo.settings import SkillSettings
from rsipo.skills import read_skill


def test_the_same_seed_gives_the_same_demonstrations(spec: AlfworldSpec, demonstrations: list[Demonstration]) -> None:
    tasks = spec.tasks("train")
    again = list(demonstrate(spec.make(), spec, tasks[3:5], behaviour=Behaviour(repetitions=2), seed=5))
    text = repr(demonstrations)
    assert again
    assert all(repr(demonstration) in text for demonstration in again)
    other = list(demonstrate(spec.make(), spec, tasks[3:5], behaviour=Behaviour(repetitions=2), seed=6))
    assert other != again


def test_responses_are_valid_and_name_a_listed_action(spec: AlfworldSpec, demonstrations: list[Demonstration]) -> None:
    played = [d for d in demonstrations if d.kind != "analysis"]
    for demonstration in played:
        action = spec.project(demonstration.answer)
        assert action.valid
        listed = demonstration.messages[-1]["content"].rsplit("\nActions:", 1)[1]
        assert f" {action.text}" in listed
        # One listed action and its copy in the response are spelled alike, space included.
        assert f"<action> {action.text}</action>" in demonstration.answer


def test_only_the_teacher_sees_a_skill(demonstrations: list[Demonstration]) -> None:
    with_skill = {"student": False, "teacher": True, "analysis": False}
    for demonstration in demonstrations:
        assert ("\nSkill: " in demonstration.messages[-1]["content"]) == with_skill[demonstration.kind]


def test_skills_are_valid_and_of_both_styles(demonstrations: list[Demonstration]) -> None:
    answers = [d.answer for d in demonstrations if d.kind == "analysis"]
    skills = [read_skill(answer, finished=True, settings=SkillSettings()) for answer in answers]
    assert all(skill.valid and json.loads(answer) for skill, answer in zip(skills, answers, strict=True))
    assert 0.3 < sum(bool(locations(skill.text)) for skill in skills) / len(skills) < 0.9


def test_blunders_stay_in_the_history_but_are_not_taught(demonstrations: list[Demonstration]) -> None:
    prompts = [d.messages[-1]["content"] for d in demonstrations if d.kind == "student"]
    assert any(re.search(r"\nNow: Nothing happens\.", prompt) for prompt in prompts)
