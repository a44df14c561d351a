"""The scripted searcher, its demonstrations, and the tokenizer made from them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from statistics import fmean

import pytest
from transformers import AutoTokenizer, Qwen2Tokenizer

from agent_system.environments.base import Task
from rsipo.embedded.demonstrations import Demonstration
from rsipo.embedded.search_demonstrations import SearchBehaviour, demonstrate_questions, play_scripted
from rsipo.embedded.search_player import (
    VAGUE_SKILL,
    SearchPlayer,
    is_procedure,
    parse_question,
    procedure,
    response,
    statements,
)
from rsipo.embedded.search_tokenizer import train_search_tokenizer
from rsipo.embedded.search_warm_start import LocalWorld
from rsipo.settings import SkillSettings
from rsipo.skills import read_skill


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> LocalWorld:
    return LocalWorld.make(tmp_path_factory.mktemp("world"), seed=5, train=90, test=18)


@pytest.fixture(scope="module")
def tasks(world: LocalWorld) -> list[Task]:
    return world.spec.tasks("train")


@pytest.fixture(scope="module")
def demonstrations(world: LocalWorld, tasks: list[Task]) -> list[Demonstration]:
    return list(demonstrate_questions(world.environment(), world.spec, tasks, seed=1))


def success(world: LocalWorld, tasks: list[Task], noise: float) -> float:
    environment = world.environment()
    return fmean(
        play_scripted(environment, world.spec, task, random.Random(task.task_id), noise).success for task in tasks
    )


def test_following_the_facts_answers_every_question_and_noise_costs(world: LocalWorld, tasks: list[Task]) -> None:
    assert success(world, tasks, 0.0) == 1.0
    assert success(world, tasks, 0.04) > 0.8
    assert 0.3 < success(world, tasks, 0.35) < 0.8


def test_a_question_is_understood_or_refused() -> None:
    quest = parse_question("In what city was the mother of Kelo Bram born?")
    assert (quest.subject, quest.kind.relations) == ("Kelo Bram", ("mother", "birthplace"))
    assert parse_question("In what city was Kelo Bram born?").kind.relations == ("birthplace",)
    with pytest.raises(ValueError, match="none of the generated kinds"):
        parse_question("Who wrote Emma?")


def test_facts_are_read_from_passages() -> None:
    text = "Kelo Bram was born in Port Selda. The mother of Kelo Bram is Tavi Orun.\nPort Selda is in Upper Venn."
    assert statements(text) == {
        ("Kelo Bram", "birthplace"): "Port Selda",
        ("Kelo Bram", "mother"): "Tavi Orun",
        ("Port Selda", "country"): "Upper Venn",
    }


def test_the_searcher_says_what_it_is_after() -> None:
    player = SearchPlayer(parse_question("Who is the mother of Kelo Bram?"), random.Random(0))
    assert player.act("", last_turn=False) == "<think>find mother</think><search> Kelo Bram</search>"
    seen = "The mother of Kelo Bram is Tavi Orun."
    assert player.act(seen, last_turn=False) == "<think>answer</think><answer> Tavi Orun</answer>"


def test_in_the_last_turn_it_answers_whatever_it_knows() -> None:
    player = SearchPlayer(parse_question("Who is the mother of Kelo Bram?"), random.Random(0))
    assert player.act("", last_turn=True).startswith("<think>guess</think><answer> ")


def test_skills_are_valid_and_name_nobody(tasks: list[Task]) -> None:
    for task in tasks:
        skill = procedure(parse_question(task.extra["question"]).kind)
        assert is_procedure(skill)
        written = read_skill(
            json.dumps({"episode_skill": skill}), finished=True, settings=SkillSettings(), answers=task.extra["answers"]
        )
        assert (written.valid, written.leaks_answer) == (True, False)
    assert not is_procedure(VAGUE_SKILL)


def test_demonstrations_are_reproducible_and_well_formed(
    world: LocalWorld, tasks: list[Task], demonstrations: list[Demonstration]
) -> None:
    again = list(demonstrate_questions(world.environment(), world.spec, tasks[:3], seed=1))
    assert again == demonstrations[: len(again)]
    for demonstration in demonstrations:
        if demonstration.kind == "analysis":
            assert set(json.loads(demonstration.answer)) == {"episode_summary", "episode_skill"}
        else:
            assert world.spec.project(demonstration.answer).valid
            assert ("\nSkill: " in demonstration.messages[0]["content"]) == (demonstration.kind == "teacher")
    skills = [json.loads(d.answer)["episode_skill"] for d in demonstrations if d.kind == "analysis"]
    assert fmean(map(is_procedure, skills)) == pytest.approx(SearchBehaviour().procedure_share, abs=0.15)


@pytest.fixture(scope="module")
def tokenizer(demonstrations: list[Demonstration]) -> Qwen2Tokenizer:
    texts = [message["content"] for d in demonstrations for message in d.messages] + [d.answer for d in demonstrations]
    return train_search_tokenizer(texts)


def test_names_are_two_tokens_wherever_they_stand(tokenizer: Qwen2Tokenizer) -> None:
    name = [" Kelo", " Bram"]
    assert tokenizer.tokenize("Task: Who is the mother of Kelo Bram?")[-3:-1] == name
    assert tokenizer.tokenize(" Kelo Bram was born in Port Selda.")[:2] == name
    assert tokenizer.tokenize("\n> search Kelo Bram\n")[1:3] == name
    assert tokenizer.tokenize(response("find mother", "search", "Kelo Bram")) == [
        "<think>find mother", "</think><search>", *name, "</search>",
    ]  # fmt: skip


def test_the_tokenizer_is_small_lossless_and_read_back_unchanged(
    tokenizer: Qwen2Tokenizer, demonstrations: list[Demonstration], tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(loaded) == len(tokenizer) <= 640
    lengths = []
    for demonstration in demonstrations[:300]:
        prompt = tokenizer.apply_chat_template(demonstration.messages, tokenize=False, add_generation_prompt=True)
        text = prompt + demonstration.answer
        ids = tokenizer(text)["input_ids"]
        assert loaded(text)["input_ids"] == ids
        assert loaded.decode(ids) == text
        lengths.append(len(ids))
    assert max(lengths) < 256
