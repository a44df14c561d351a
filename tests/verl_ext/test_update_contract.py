"""One update through veRL's FSDP2 engine equals plain torch, however it is cut into micro-batches and ranks."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

PROCESS = Path(__file__).with_name("engine_process.py")
MINI_BATCH_SIZE, SEED, OPSD, BETA, KL, ENTROPY, CLIP, LEARNING_RATE = 5, 3, 0.1, 5.0, 0.05, 0.01, 0.2, 0.1
SGD = [
    # Weights then move in proportion to the gradient, so comparing them compares the whole gradient.
    "actor_rollout_ref.actor.optim.optimizer=SGD",
    "actor_rollout_ref.actor.optim.weight_decay=0",
    f"actor_rollout_ref.actor.optim.lr={LEARNING_RATE}",
]
ONE_ROW_PER_MICRO_BATCH = [
    "actor_rollout_ref.actor.use_dynamic_bsz=False",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=False",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
]
Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def samples(make_samples: Callable) -> list:
    return make_samples(11, seed=1)


@pytest.fixture(scope="session")
def auxiliary(make_auxiliary: Callable) -> list:
    return make_auxiliary([0.5, -0.3, 0.8], seed=2)


@pytest.fixture(scope="session")
def scenarios(samples: list, auxiliary: list, make_auxiliary: Callable, verl_overrides: list[str]) -> dict[str, dict]:
    def scenario(
        updates: list, *overrides: str, size: int = MINI_BATCH_SIZE, opsd: float | None = OPSD, **more: Any
    ) -> dict:
        settings = [*verl_overrides, *overrides]
        return {"updates": updates, "overrides": settings, "mini_batch_size": size, "opsd": opsd, "seed": SEED, **more}

    poisoned = pickle.loads(pickle.dumps(samples))
    poisoned[0].tokens["advantages"][0] = np.inf
    pairs = [(sample.prompt_ids, sample.response_ids) for sample in samples]
    both = [(samples, auxiliary), (samples[:7], auxiliary)]
    return {
        "full": scenario([(samples, auxiliary)], *SGD, score=pairs),
        "one_row_micro_batches": scenario([(samples, auxiliary)], *SGD, *ONE_ROW_PER_MICRO_BATCH),
        "one_auxiliary_sample": scenario([(samples, auxiliary[:1])], *SGD),
        "one_mini_batch": scenario([(samples, auxiliary)], *SGD, size=100),
        "one_mini_batch_reversed": scenario([(samples[::-1], auxiliary[::-1])], *SGD, size=100),
        "no_term": scenario([(samples, [])], opsd=None),
        "zero_coefficient": scenario([(samples, [])], opsd=0.0),
        "hybrid": scenario([(samples, [])]),
        "zero_rewards": scenario([(samples, make_auxiliary([0.0, 0.0, 0.0], seed=2))]),
        "not_finite": scenario([(poisoned, auxiliary)], size=100),
        "uninterrupted": scenario(both, save_after=1),
        "resumed": scenario(both[1:], load="uninterrupted"),
    }


def _run(scenarios: dict[str, dict], world: int, folder: Path) -> Results:
    request, result = folder / "request.pkl", folder / "result.pkl"
    request.write_bytes(pickle.dumps(scenarios))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "VERL_PLATFORM": "cpu"}
    processes = []
    for rank in range(world):
        environment = os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        with (folder / f"log_{rank}").open("w") as log:
            command = [sys.executable, str(PROCESS), str(request), str(result)]
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    try:
        codes = [process.wait(timeout=400) for process in processes]
    finally:
        for process in processes:
            process.kill()
    logs = "\n".join((folder / f"log_{rank}").read_text()[-3000:] for rank in range(world))
    assert codes == [0] * world, logs
    return pickle.loads(result.read_bytes())


@pytest.fixture(scope="session", params=[1, 2], ids=["world1", "world2"])
def results(
    request: pytest.FixtureRequest, scenarios: dict[str, dict], tmp_path_factory: pytest.TempPathFactory
) -> Results:
    return _run(scenarios, request.param, tmp_path_factory.mktemp(f"world{request.param}"))


@pytest.fixture(scope="session")
def initial(tiny_model: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32, attn_implementation="sdpa")


def _scores(model: torch.nn.Module, sample: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the response tokens, and the full distributions."""
    ids = torch.tensor(np.concatenate([sample.prompt_ids, sample.response_ids]).astype(np.int64))
    logits = model(ids[None]).logits[0].log_softmax(-1)[len(sample.prompt_ids) - 1 : -1]
    return logits.gather(-1, ids[len(sample.prompt_ids) :, None])[:, 0], logits


def _reference(
    tiny_model: Path, samples: list, auxiliary: list, size: int
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Equations (1), (12), (10) and (13) in plain torch: gradient norms and the weights after plain SGD."""
    from transformers import AutoModelForCausalLM

    from verl_ext.batch import plan_mini_batches

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32, attn_implementation="sdpa")
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    plan = plan_mini_batches([sample.length for sample in samples], size, 1, SEED)
    norms = []
    for number, ((rows,),) in enumerate(zip(plan, strict=True)):
        batch = [samples[row] for row in rows]
        loss = torch.zeros(())
        for sample in batch:
            score, logits = _scores(model, sample)
            tokens = {name: torch.tensor(values) for name, values in sample.tokens.items()}
            ratio, advantage = (score - tokens["old_log_probs"]).exp(), tokens["advantages"]
            policy = -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
            # veRL's dual clip: a negative advantage costs at most three times itself.
            policy = torch.where(advantage < 0, policy.minimum(-3 * advantage), policy)
            entropy = -(logits.exp() * logits).sum(-1)
            log_ratio = tokens["ref_log_prob"] - score
            gap = tokens["teacher_log_probs"] - score
            opsd = torch.sigmoid(BETA * gap.detach()) * gap * sample.scalars["trust"]
            loss = loss + (policy - ENTROPY * entropy + KL * (log_ratio.exp() - log_ratio - 1) + OPSD * opsd).sum()
        loss = loss / sum(len(sample.response_ids) for sample in batch)
        if number == len(plan) - 1:
            for sample in auxiliary:
                mask = torch.tensor(sample.tokens["mask"])
                likelihood = (_scores(model, sample)[0] * mask).sum() / mask.sum()
                loss = loss - sample.scalars["reward"] * likelihood / sample.scalars["num_tasks"]
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
    return norms, {name: value.detach() for name, value in model.state_dict().items()}


def _largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


def _same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", ["full", "one_row_micro_batches", "one_auxiliary_sample", "one_mini_batch"])
def test_update_equals_plain_torch(
    name: str, results: Results, scenarios: dict, tiny_model: Path, initial: Any
) -> None:
    (samples, auxiliary) = scenarios[name]["updates"][0]
    norms, weights = _reference(tiny_model, samples, auxiliary, scenarios[name]["mini_batch_size"])
    (report,) = results[name]["reports"]
    assert report["norms"] == pytest.approx(norms, rel=1e-5)
    assert report["applied"]
    moved = _largest_difference(weights, initial.state_dict())
    assert _largest_difference(results[name]["state"], weights) < 1e-5 * moved + 1e-6


def test_sample_order_does_not_matter(results: Results) -> None:
    one, other = results["one_mini_batch"], results["one_mini_batch_reversed"]
    assert one["reports"][0]["norms"] == pytest.approx(other["reports"][0]["norms"], rel=1e-5)
    assert _largest_difference(one["state"], other["state"]) < 1e-6


def test_metrics_have_global_denominators(results: Results, scenarios: dict, initial: Any) -> None:
    samples, _ = scenarios["one_mini_batch"]["updates"][0]
    (metrics,) = results["one_mini_batch"]["reports"][0]["metrics"]
    with torch.no_grad():
        scored = [_scores(initial, sample) for sample in samples]
    ratios = torch.cat(
        [(s - torch.tensor(x.tokens["old_log_probs"])).exp() for (s, _), x in zip(scored, samples, strict=True)]
    )
    entropies = torch.cat([-(logits.exp() * logits).sum(-1) for _, logits in scored])
    assert metrics["ppo/ratio_mean"] == pytest.approx(ratios.mean().item(), rel=1e-5)
    assert metrics["ppo/ratio_max"] == pytest.approx(ratios.max().item(), rel=1e-5)
    assert metrics["ppo/approx_kl"] == pytest.approx((ratios - 1 - ratios.log()).mean().item(), rel=1e-4)
    assert metrics["ppo/entropy"] == pytest.approx(entropies.mean().item(), rel=1e-5)


def test_log_probs_equal_transformers(results: Results, samples: list, initial: Any) -> None:
    with torch.no_grad():
        expected = [_scores(initial, sample)[0].numpy() for sample in samples]
    for mine, theirs in zip(results["full"]["scores"], expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_zero_coefficient_is_no_term_bit_for_bit(results: Results) -> None:
    assert _same_bits(results["zero_coefficient"]["state"], results["no_term"]["state"])


def test_zero_rewards_are_no_auxiliary_loss_bit_for_bit(results: Results) -> None:
    assert _same_bits(results["zero_rewards"]["state"], results["hybrid"]["state"])
    assert not _same_bits(results["hybrid"]["state"], results["no_term"]["state"])


def test_a_gradient_that_is_not_finite_changes_nothing(results: Results, initial: Any) -> None:
    (report,) = results["not_finite"]["reports"]
    assert not report["applied"]
    assert _same_bits(results["not_finite"]["state"], initial.state_dict())


def test_resumed_equals_uninterrupted(results: Results) -> None:
    assert _same_bits(results["resumed"]["state"], results["uninterrupted"]["state"])
    assert results["resumed"]["reports"][0]["norms"] == results["uninterrupted"]["reports"][1]["norms"]
