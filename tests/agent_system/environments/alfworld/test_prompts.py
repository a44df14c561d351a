from __future__ import annotations

import pickle

import pytest

from agent_system.environments.alfworld.prompts import clean_observation, task_sentence
from agent_system.environments.alfworld.spec import AlfworldSpec
from agent_system.environments.base import EnvironmentSpec, Observation, PromptContext

FEEDBACK = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
    "a desk 1, and a shelf 1.\n\nYour task is to: put a hot mug in shelf."
)
FIRST = "You are in the middle of a room. Looking quickly around you, you see a desk 1, and a shelf 1."
ACTIONS = ("close desk 1", "examine desk 1", "go to shelf 1", "inventory", "look", "take mug 2 from desk 1")
TASK = "put a hot mug in shelf."


def context(turns: int) -> PromptContext:
    history = ((FIRST, "go to desk 1"), *((f"obs {n}", f"act {n}") for n in range(2, 10)))[:turns]
    text = "On the desk 1, you see a mug 2." if turns else FIRST
    return PromptContext(TASK, Observation(text, ACTIONS), history)


def prompt(profile: str, turns: int, **options: object) -> str:
    spec = AlfworldSpec("unused", prompt_profile=profile, history_length=3)  # type: ignore[arg-type]
    messages = spec.messages(context(turns), **options)  # type: ignore[arg-type]
    assert [message["role"] for message in messages] == ["user"]
    return messages[0]["content"]


def test_the_first_feedback_is_split_into_task_and_observation() -> None:
    assert task_sentence(FEEDBACK) == TASK
    assert clean_observation(FEEDBACK) == FIRST
    assert clean_observation("Nothing happens.") == "Nothing happens."
    assert task_sentence("Nothing happens.") == ""


def test_compact_prompts_are_exact() -> None:
    assert prompt("compact", 0) == (
        "Task: put a hot mug in shelf.\n"
        "Now: You see a desk 1, and a shelf 1.\n"
        "Actions: go to shelf 1 take mug 2 from desk 1"
    )
    assert prompt("compact", 1, skill="the mug 2 is in desk 1.") == (
        "Task: put a hot mug in shelf.\n"
        "Skill: the mug 2 is in desk 1.\n"
        "You see a desk 1, and a shelf 1.\n> go to desk 1\n"
        "Now: On the desk 1, you see a mug 2.\n"
        "Actions: go to shelf 1 take mug 2 from desk 1"
    )


def test_the_full_prompt_of_turn_one_has_no_history() -> None:
    text = prompt("full", 0)
    assert "so far" not in text
    assert "step 1" in text
    assert text.count(TASK) == 1


@pytest.mark.parametrize("profile", ["full", "compact"])
def test_only_the_last_turns_are_shown(profile: str) -> None:
    text = prompt(profile, 6)
    assert [f"act {n}" in text for n in range(2, 7)] == [False, False, True, True, True]
    assert "act 6" not in prompt(profile, 6, history_length=0)
    assert "act 6" in prompt(profile, 6, history_length=1)
    assert "act 5" not in prompt(profile, 6, history_length=1)


def test_full_prompts_number_steps_and_list_every_action() -> None:
    text = prompt("full", 6)
    assert "6 steps" in text
    assert "This is step 7." in text
    assert "[Step 4] Observation: obs 4\n[Step 4] Action: act 4" in text
    assert all(f"- {action}" in text for action in ACTIONS)
    assert all(tag in text for tag in ("<think>", "</think>", "<action>", "</action>"))


@pytest.mark.parametrize("profile", ["full", "compact"])
@pytest.mark.parametrize("turns", [0, 4])
def test_the_teacher_prompt_only_adds_the_skill_right_after_the_task(profile: str, turns: int) -> None:
    student, teacher = prompt(profile, turns), prompt(profile, turns, skill="Heat it.\nThen shelve it.")
    before, after = teacher.split("Heat it.\nThen shelve it.")
    head = student[: student.index(TASK) + len(TASK)]
    assert before.startswith(head)
    assert len(before) - len(head) < 60
    assert student.endswith(after.strip())


def test_the_spec_is_a_picklable_environment_spec() -> None:
    spec = AlfworldSpec("somewhere", prompt_profile="compact")
    assert isinstance(spec, EnvironmentSpec)
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("prompt_profile", "short", "prompt_profile is 'short'; choose one of full, compact"),
        ("engine", "slow", "engine is 'slow'; choose one of fast, stock"),
        ("max_turns", 0, "max_turns is 0"),
        ("history_length", -1, "history_length is -1"),
    ],
)
def test_bad_settings_are_refused(setting: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AlfworldSpec("somewhere", **{setting: value})  # type: ignore[arg-type]
