"""PolicyCluster on a real Ray cluster: workers, CPU rollout servers and weight sync at world size 1 and 2."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", params=[1, 2], ids=["world1", "world2"])
def cluster(request: pytest.FixtureRequest, verl_overrides: list[str], small_ray: Callable) -> Iterator[Any]:
    from verl_ext.cluster import PolicyCluster, load_verl_config
    from verl_ext.losses import AuxiliaryLoss, TokenTerm

    # Local functions travel to the workers by value; a test module cannot be imported there.
    def opsd(log_prob: torch.Tensor, mask: torch.Tensor, fields: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        gap = fields["teacher_log_probs"] - log_prob
        return torch.sigmoid(5 * gap.detach()) * gap * fields["trust"].unsqueeze(-1), {"gap": gap}

    def skill(log_prob: torch.Tensor, mask: torch.Tensor, fields: Any) -> torch.Tensor:
        return -fields["reward"] * (log_prob * fields["mask"]).sum(-1) / fields["mask"].sum(-1) / fields["num_tasks"]

    config = load_verl_config(
        [
            *verl_overrides,
            f"trainer.n_gpus_per_node={request.param}",
            "actor_rollout_ref.rollout.name=cpu",
            "actor_rollout_ref.rollout.dtype=float32",
            "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
            "actor_rollout_ref.rollout.free_cache_engine=False",
            "actor_rollout_ref.rollout.prompt_length=64",
            "actor_rollout_ref.rollout.response_length=16",
        ]
    )
    with small_ray(request.param):
        cluster = PolicyCluster(
            config,
            token_terms=[TokenTerm("opsd", opsd, 0.1, ("teacher_log_probs", "trust"))],
            auxiliary_loss=AuxiliaryLoss("skill", skill, ("mask", "reward", "num_tasks")),
            routing_slack=8,
        )
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.shutdown()


def _generate(cluster: Any, prompts: list[np.ndarray]) -> list[Any]:
    client = cluster.client()

    async def all_of_them() -> list[Any]:
        params = [{"temperature": 1.0, "max_tokens": 8, "logprobs": True} for _ in prompts]
        calls = [
            client.generate(request_id=str(index), prompt_ids=prompt.tolist(), sampling_params=params[index])
            for index, prompt in enumerate(prompts)
        ]
        return await asyncio.gather(*calls)

    return asyncio.run(all_of_them())


def _largest_gap(cluster: Any, prompts: list[np.ndarray], outputs: list[Any]) -> float:
    pairs = [(prompt, np.array(output.token_ids, np.int32)) for prompt, output in zip(prompts, outputs, strict=True)]
    scores = cluster.log_probs(pairs)
    return max(np.abs(np.array(out.log_probs) - score).max() for out, score in zip(outputs, scores, strict=True))


def test_where_a_request_goes_changes_no_token(cluster: Any) -> None:
    """By task, by load, and by task with a group that overflows at once: seeds are of the requests, not of the servers."""
    from verl_ext.task_router import client_with_router

    async def tokens(client: Any) -> list[list[int]]:
        calls = [
            client.generate(
                f"1/games/{task}/student/{index}",
                prompt_ids=[7, 8, 9, task],
                sampling_params={"temperature": 1.0, "max_tokens": 8, "logprobs": True, "seed": 10 * task + index},
            )
            for task in range(3)
            for index in range(4)
        ]
        return [output.token_ids for output in await asyncio.gather(*calls)]

    routed, by_load, overflowing = (
        asyncio.run(tokens(client))
        for client in (cluster.client(), *(client_with_router(cluster._servers, slack) for slack in (None, 0)))
    )
    assert routed == by_load == overflowing
    assert len(set(map(tuple, routed))) > 1


def test_a_step(cluster: Any, make_samples: Callable, make_auxiliary: Callable, tmp_path: Path) -> None:
    """Rollout, scores, update, sync, save, load: what every training step does, in its order."""
    samples, auxiliary = make_samples(9, seed=1), make_auxiliary([0.5, -0.3, 0.8], seed=2)
    prompts = [sample.prompt_ids for sample in samples]
    pairs = [(sample.prompt_ids, sample.response_ids) for sample in samples]

    outputs = _generate(cluster, prompts)
    assert {output.extra_fields["global_steps"] for output in outputs} == {0}
    assert _largest_gap(cluster, prompts, outputs) < 1e-5

    reference = cluster.log_probs(pairs, role="reference")
    for one, other in zip(reference, cluster.log_probs(pairs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)

    report = cluster.update(samples, auxiliary, mini_batch_size=4, seed=0)
    assert report.applied
    assert len(report.mini_batches) == len(report.grad_norms) == 3
    assert "skill/loss" not in report.mini_batches[0]
    assert {"skill/loss", "opsd/loss", "opsd/gap", "ppo/ratio_max"} <= report.mini_batches[-1].keys()
    assert report.learning_rate == pytest.approx(1e-6)

    cluster.sync_weights(7, timeout_s=120)
    outputs = _generate(cluster, prompts)
    assert {output.extra_fields["global_steps"] for output in outputs} == {7}
    assert _largest_gap(cluster, prompts, outputs) < 1e-5
    for one, other in zip(reference, cluster.log_probs(pairs, role="reference"), strict=True):
        np.testing.assert_array_equal(one, other)

    cluster.save(tmp_path / "checkpoint")
    first = cluster.update(samples, auxiliary, mini_batch_size=4, seed=1)
    weights = cluster.export_state()
    cluster.load(tmp_path / "checkpoint")
    second = cluster.update(samples, auxiliary, mini_batch_size=4, seed=1)
    assert first == second
    assert all(torch.equal(tensor, weights[name]) for name, tensor in cluster.export_state().items())


def test_bad_input_is_refused_before_the_workers_see_it(cluster: Any, make_samples: Callable, tmp_path: Path) -> None:
    from verl_ext.cluster import ClusterError

    samples = make_samples(2, seed=1)
    with pytest.raises(ValueError, match="sequence 0 has 81 tokens"):
        cluster.log_probs([(np.zeros(80, np.int32), np.zeros(1, np.int32))])
    del samples[0].tokens["advantages"], samples[1].tokens["advantages"]
    with pytest.raises(ValueError, match="lack the field 'advantages'"):
        cluster.update(samples, mini_batch_size=4, seed=0)
    with pytest.raises(ClusterError, match="incomplete or was made at another world size"):
        cluster.load(tmp_path)


def test_memory_is_reported_for_every_process(cluster: Any) -> None:
    memory = cluster.memory()
    assert {"driver", "worker_0", "server_0"} <= memory.keys()
    assert all(rss > 2**20 for rss in memory.values())


def test_a_lost_server_fails_the_sync_with_one_clear_error(cluster: Any) -> None:
    """The last test on each cluster: it breaks it."""
    import ray

    from verl_ext.cluster import WeightSyncError

    ray.kill(cluster._server_actors()[0])
    with pytest.raises(WeightSyncError, match="did not get weights 8"):
        cluster.sync_weights(8, timeout_s=60)


def test_a_phase_without_an_end_is_given_up() -> None:
    from verl_ext.cluster import ClusterTimeout, _within

    with pytest.raises(ClusterTimeout, match=r"sync did not end within 0\.05 s"):
        _within(0.05, "sync", threading.Event().wait)
    assert _within(None, "sync", lambda: 3) == 3


def test_a_configuration_that_cannot_work_is_refused(verl_overrides: list[str]) -> None:
    from verl_ext.cluster import PolicyCluster, load_verl_config

    for override, message in [
        ("actor_rollout_ref.actor.strategy=fsdp", "fsdp2 on a CPU"),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1", "total_training_steps"),
        ("trainer.n_gpus_per_node=3", "does not divide"),
        ("actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=False", "use_dynamic_bsz"),
    ]:
        with pytest.raises(ValueError, match=message):
            PolicyCluster(load_verl_config([*verl_overrides, override]))
