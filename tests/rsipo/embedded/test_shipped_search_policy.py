"""The policy in ``rsipo/assets/tiny-search-policy``: that it loads everywhere and plays what it was made for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from rsipo.embedded.making import PROVENANCE
from rsipo.embedded.play import Policy, write_skills
from rsipo.embedded.search_play import SKILL_TOKENS, play_questions
from rsipo.embedded.search_warm_start import LocalWorld
from rsipo.models import EMBEDDED_SEARCH_POLICY, read_model


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.set_num_threads(1)
    return Policy.load(EMBEDDED_SEARCH_POLICY)


def test_the_folder_is_small_whole_and_says_how_it_was_made(policy: Policy) -> None:
    assert read_model(EMBEDDED_SEARCH_POLICY).layers == 3
    assert (EMBEDDED_SEARCH_POLICY / "model.safetensors").stat().st_size < 1_900_000
    assert AutoConfig.from_pretrained(EMBEDDED_SEARCH_POLICY).dtype == torch.bfloat16
    config, tokenizer = policy.model.config, policy.tokenizer
    assert config.vocab_size == len(tokenizer)
    assert config.eos_token_id == policy.model.generation_config.eos_token_id == tokenizer.eos_token_id
    record = json.loads((EMBEDDED_SEARCH_POLICY / PROVENANCE).read_text())
    assert record["measured"]["questions"] >= 60


def test_it_searches_answers_and_writes_valid_skills(policy: Policy, tmp_path: Path) -> None:
    """In a world that neither its demonstrations nor its measurement showed."""
    world = LocalWorld.make(tmp_path, seed=99, train=27, test=36)
    torch.manual_seed(0)
    episodes = play_questions(policy, world.spec, world.environment, world.spec.tasks("test"))
    turns = [turn for episode in episodes for turn in episode.turns]
    assert sum(turn.action_valid for turn in turns) >= 0.9 * len(turns)
    assert sum(turn.action.startswith("<search>") for turn in turns) >= len(episodes) / 2
    assert any(episode.success for episode in episodes)
    skills = write_skills(policy, episodes, benchmark="search", max_tokens=SKILL_TOKENS)
    assert sum(skill is not None for skill in skills) >= 0.8 * len(skills)
