"""Supervised steps through veRL's engine on a real Ray cluster equal plain torch, however they are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.ray
LEARNING_RATE = 0.1
# Weights then move in proportion to the gradient, so what the next step sees compares the whole gradient.
SGD = [
    "actor_rollout_ref.actor.optim.optimizer=SGD",
    "actor_rollout_ref.actor.optim.weight_decay=0",
    f"actor_rollout_ref.actor.optim.lr={LEARNING_RATE}",
]
ONE_ROW_PER_MICRO_BATCH = [
    "actor_rollout_ref.actor.use_dynamic_bsz=False",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=False",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
]


@pytest.fixture(scope="module")
def samples(make_samples: Callable) -> list[Any]:
    from verl_ext.batch import Sample

    return [Sample(sample.prompt_ids, sample.response_ids) for sample in make_samples(15, seed=4)]


@pytest.fixture(scope="module")
def ray_for_two(small_ray: Callable) -> Iterator[None]:
    with small_ray(2):
        yield


@pytest.fixture(scope="module", params=[(1, []), (2, []), (1, ONE_ROW_PER_MICRO_BATCH)], ids=["1", "2", "1-one-row"])
def cluster(request: pytest.FixtureRequest, ray_for_two: None, verl_overrides: list[str]) -> Iterator[Any]:
    from verl_ext.supervised import SupervisedCluster
    from verl_ext.verl_config import load_verl_config

    world, more = request.param
    made = SupervisedCluster(load_verl_config([*verl_overrides, *SGD, *more, f"trainer.n_gpus_per_node={world}"]))
    made.start()
    yield made
    made.shutdown()


def _loss(model: torch.nn.Module, samples: list[Any]) -> torch.Tensor:
    total, tokens = torch.zeros(()), 0
    for sample in samples:
        ids = torch.tensor(np.concatenate([sample.prompt_ids, sample.response_ids]).astype(np.int64))
        scores = model(ids[None]).logits[0, len(sample.prompt_ids) - 1 : -1]
        total = total + torch.nn.functional.cross_entropy(scores, ids[len(sample.prompt_ids) :], reduction="sum")
        tokens += len(sample.response_ids)
    return total / tokens


def test_steps_equal_plain_torch_and_a_loaded_checkpoint_repeats_them(
    cluster: Any, samples: list[Any], tiny_model: Path, tmp_path: Path
) -> None:
    """Batches of 8 and, at the end of an epoch, 7: not divisible by two ranks."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32, attn_implementation="sdpa")
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    reports = []
    for number, batch in enumerate((samples[:8], samples[8:])):
        loss = _loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        if number == 1:
            cluster.save(tmp_path)
        reports.append(cluster.train_step(batch))
        assert reports[-1].loss == pytest.approx(loss.item(), rel=1e-5)
        assert reports[-1].grad_norm == pytest.approx(norm, rel=1e-4)
        assert reports[-1].learning_rate == LEARNING_RATE
    with torch.no_grad():
        validation = _loss(model, samples[:5]).item()
    found = cluster.evaluate(samples[:5])
    assert found == pytest.approx(validation, rel=1e-5)

    cluster.load(tmp_path)
    assert cluster.train_step(samples[8:]) == reports[-1]
    assert cluster.evaluate(samples[:5]) == found
