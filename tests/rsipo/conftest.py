"""Shared parts: a real byte-level BPE tokenizer, finished episodes, and an audit folder of a few steps."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from agent_system.environments.base import Observation, PromptContext
from agent_system.rollout.types import Episode, Generation, Turn

CORPUS = [
    '{"episode_summary": "It looked in the cabinet.", "episode_skill": "Look in the cabinet first, then put it away."}',
    '{"episode_summary": "done", "episode_skill": "Open the fridge, cool the mug, then put it in the cabinet."}',
    "Task: put a mug in cabinet. You arrive at cabinet 1. On the cabinet 1, you see a mug.",
]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Byte-level BPE without a pre-tokenization regex, so that its merges cross quotes and braces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 20, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def decode(tokenizer):
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)


@pytest.fixture(scope="session")
def make_episode():
    """Builds a finished episode of the given number of turns."""

    def make(
        turns: int = 3, *, success: bool = True, invalid: int | None = None, impossible: int | None = None
    ) -> Episode:
        played = []
        for number in range(1, turns + 1):
            observation = Observation(f"You see thing {number}.", ("look",))
            generation = Generation(
                np.array([1], np.int32),
                np.array([2], np.int32),
                np.zeros(1, np.float32),
                f"<think>t{number}</think>",
                True,
            )
            played.append(
                Turn(
                    PromptContext("put a mug in cabinet", observation),
                    generation,
                    f"go {number}",
                    action_valid=number != invalid,
                    admissible=number != impossible,
                )
            )
        return Episode("game", 0, "ok", success, played, "f" * 64, "put a mug in cabinet", "You win.")

    return make


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)
