from __future__ import annotations

import pickle

import pytest

from agent_system.environments.base import EnvironmentSpec, Observation, PromptContext
from agent_system.environments.search.prompts import short_action
from agent_system.environments.search.spec import SearchSpec

QUESTION = "Who is the mother of the author of Emma?"
TURNS = [
    ("<search>author of Emma</search>", "<information>Doc 1(Title: Emma) Emma is by Jane Austen.</information>"),
    ("", ""),
    ("<search>Jane Austen mother</search>", '<information>Doc 1(Title: "Jane Austen") Her mother was.</information>'),
]


def context(turns: int) -> PromptContext:
    seen = ["", *(observation for _, observation in TURNS)]
    history = tuple((seen[n], TURNS[n][0]) for n in range(turns))
    return PromptContext(QUESTION, Observation(seen[turns]), history)


def prompt(profile: str, turns: int, **options: object) -> str:
    spec = SearchSpec(None, None, (), prompt_profile=profile, observation_form="plain")  # type: ignore[arg-type]
    messages = spec.messages(context(turns), **options)  # type: ignore[arg-type]
    assert [message["role"] for message in messages] == ["user"]
    return messages[0]["content"]


def test_the_first_full_prompt_has_question_and_rules_and_no_history() -> None:
    text = prompt("full", 0)
    assert text.count(QUESTION) == 1
    assert "so far" not in text
    assert "<information>" not in text
    assert "This is step 1." in text
    for tag in ("<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>"):
        assert tag in text


def test_the_history_pairs_every_action_with_what_it_led_to() -> None:
    text = prompt("full", 3)
    assert (
        "You have taken 3 steps so far. The latest 3, with your queries between <search> and </search> and what the search "
        "engine returned between <information> and </information>:\n"
        "Step 1:<search>author of Emma</search> <information>Doc 1(Title: Emma) Emma is by Jane Austen.</information>\n"
        "Step 2: \n"
        'Step 3:<search>Jane Austen mother</search> <information>Doc 1(Title: "Jane Austen") Her mother was.</information>'
    ) in text
    assert "This is step 4." in text


def test_a_shorter_history_drops_the_oldest_turns_and_never_the_present_result() -> None:
    assert "Step 1:" not in prompt("full", 3, history_length=2)
    assert "Step 2:" in prompt("full", 3, history_length=2)
    bare = prompt("full", 3, history_length=0)
    assert "Step 3:" not in bare
    assert "Her mother was." in bare


def test_the_skill_stands_right_after_the_question() -> None:
    text = prompt("full", 1, skill="Find the author first.")
    question, skill, history = (text.index(part) for part in (QUESTION, "Find the author first.", "Step 1:"))
    assert question < skill < history
    assert "kill" not in prompt("full", 1)


def test_compact_prompts_are_exact() -> None:
    assert prompt("compact", 0) == f"Task: {QUESTION}"
    assert prompt("compact", 3, skill="find the author.") == (
        f"Task: {QUESTION}\nSkill: find the author.\n> search author of Emma\n Emma is by Jane Austen.\n> nothing\n"
        "> search Jane Austen mother\n Her mother was."
    )


def test_the_compact_form_of_an_action() -> None:
    assert short_action("<answer>Steventon</answer>") == "answer Steventon"
    assert short_action("") == "nothing"


def test_the_specification_is_picklable_and_checks_itself() -> None:
    spec = SearchSpec("train.parquet", None, ("http://127.0.0.1:8000",))
    assert isinstance(spec, EnvironmentSpec)
    assert pickle.loads(pickle.dumps(spec)) == spec
    with pytest.raises(ValueError, match=r"compact.*set observation_form='plain'"):
        SearchSpec(None, None, (), prompt_profile="compact")
    with pytest.raises(ValueError, match="top_k is 0"):
        SearchSpec(None, None, (), top_k=0)
    with pytest.raises(ValueError, match="observation_form is 'xml'; choose one of json, json_unicode, plain"):
        SearchSpec(None, None, (), observation_form="xml")  # type: ignore[arg-type]


def test_splits_and_missing_files_are_explained() -> None:
    spec = SearchSpec(None, "/nowhere/test.parquet", ())
    with pytest.raises(FileNotFoundError, match=r"env\.train_data is not set: .*search_train_"):
        spec.tasks("train")
    with pytest.raises(
        FileNotFoundError, match=r"env\.test_data: no file /nowhere/test\.parquet .*preprocess_search_r1"
    ):
        spec.tasks("test")
    with pytest.raises(ValueError, match="no split 'valid_seen'; there are train and test"):
        spec.tasks("valid_seen")
