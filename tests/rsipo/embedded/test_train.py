from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from rsipo.embedded.demonstrations import Demonstration
from rsipo.embedded.tokenizer import train_tokenizer
from rsipo.embedded.train import Progress, Recipe, Sample, _batches, _collate, encode, new_model, train

_SMALL = Recipe(tokens=40_000, batch_tokens=1_000, layers=1, width=32, feed_forward=64, heads=2, warmup_steps=5)


def test_training_lowers_the_loss_and_repeats_exactly(demonstrations: list[Demonstration]) -> None:
    torch.set_num_threads(1)
    texts = [message["content"] for d in demonstrations for message in d.messages] + [d.answer for d in demonstrations]
    tokenizer = train_tokenizer(texts)
    samples = encode(demonstrations, tokenizer)

    def run() -> tuple[list[Progress], dict[str, torch.Tensor]]:
        torch.manual_seed(3)
        model, seen = new_model(tokenizer, _SMALL), []
        assert model.get_input_embeddings().num_embeddings == len(tokenizer)
        train(model, samples, _SMALL, seed=3, report=seen.append)
        return seen, model.state_dict()

    (first, weights), (second, same_weights) = run(), run()
    assert first == second
    assert all(torch.equal(weights[name], same_weights[name]) for name in weights)
    assert first[-1].tokens >= _SMALL.tokens
    assert first[-1].response_loss < 0.7 * first[0].response_loss


def test_masks_cover_the_response_and_the_prompt_once() -> None:
    batch = [Sample(np.arange(1, 6, dtype=np.uint16), 3), Sample(np.arange(1, 4, dtype=np.uint16), 1)]
    ids, is_response, is_prompt = _collate(batch)
    assert ids.tolist() == [[1, 2, 3, 4, 5], [1, 2, 3, 0, 0]]
    assert is_response.tolist() == [[False, False, True, True], [True, True, False, False]]
    assert is_prompt.tolist() == [[True, True, False, False], [False] * 4]


@pytest.mark.parametrize("budget", [10, 100, 1_000])
def test_batches_hold_every_sample_once_within_the_budget(budget: int) -> None:
    samples = [Sample(np.full(length, length, dtype=np.uint16), 1) for length in range(2, 40)]
    seen: list[int] = []
    for batch in _batches(samples, budget, random.Random(0)):
        longest = max(len(sample.ids) for sample in batch)
        assert len(batch) == 1 or longest * len(batch) <= budget
        seen += [len(sample.ids) for sample in batch]
        if len(seen) >= len(samples):
            break
    assert sorted(seen) == list(range(2, 40))
