"""The policy in ``rsipo/assets/tiny-policy``: that it loads everywhere and plays what it was made for."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from agent_system.environments.alfworld.spec import AlfworldSpec
from rsipo.embedded.demonstrations import Demonstration
from rsipo.embedded.making import PROVENANCE
from rsipo.embedded.play import Policy, play_games, write_skills
from rsipo.models import EMBEDDED_POLICY


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.set_num_threads(1)
    return Policy.load(EMBEDDED_POLICY)


def test_the_file_is_small_bfloat16_and_loads_in_float32(policy: Policy) -> None:
    assert (EMBEDDED_POLICY / "model.safetensors").stat().st_size < 1_900_000
    assert AutoConfig.from_pretrained(EMBEDDED_POLICY).dtype == torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED_POLICY, dtype=torch.float32)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_model_and_tokenizer_have_the_same_vocabulary_and_end(policy: Policy) -> None:
    config, tokenizer = policy.model.config, policy.tokenizer
    assert config.vocab_size == len(tokenizer) == policy.model.get_input_embeddings().num_embeddings
    assert config.eos_token_id == policy.model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.decode([tokenizer.eos_token_id]) == "<|im_end|>"
    assert config.pad_token_id == tokenizer.pad_token_id


def test_the_tokenizer_knows_the_prompts(demonstrations: list[Demonstration]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_POLICY)
    for demonstration in demonstrations[:200]:
        prompt = tokenizer.apply_chat_template(demonstration.messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(prompt + demonstration.answer)["input_ids"]
        assert tokenizer.decode(ids) == prompt + demonstration.answer


def test_it_says_how_it_was_made() -> None:
    record = json.loads((EMBEDDED_POLICY / PROVENANCE).read_text())
    assert record["recipe"]["tokens"] >= 1_000_000
    assert record["measured"]["games"] >= 60


def test_it_plays_legally_and_writes_valid_skills(policy: Policy, spec: AlfworldSpec) -> None:
    torch.manual_seed(0)
    episodes = play_games(policy, spec, spec.tasks("valid_unseen"))
    turns = [turn for episode in episodes for turn in episode.turns]
    assert sum(turn.action_valid for turn in turns) >= 0.9 * len(turns)
    assert sum(turn.admissible for turn in turns) >= 0.5 * len(turns)
    assert any(episode.success for episode in episodes)
    skills = write_skills(policy, episodes)
    assert sum(skill is not None for skill in skills) >= 0.8 * len(skills)
