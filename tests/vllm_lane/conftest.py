"""veRL's vLLM servers on a CPU: one cluster of two ranks for each way of using them, and what the checks need of it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

WORLD = 2
PROMPTS, RESPONSE_TOKENS = 8, 24


@pytest.fixture(scope="session", autouse=True)
def _vllm_is_installed() -> None:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not in this environment: bash scripts/test.sh --vllm runs these tests in one that has it")


@dataclass
class Lane:
    """A started cluster, and shorthands for what every check does with it."""

    cluster: Any
    prompts: list[np.ndarray]
    stop_ray: Callable[[], None]
    memory_before: set[str]
    end_of_turn: int
    version: int = 0

    def generate(self, prompts: Sequence[np.ndarray] | None = None, tag: str = "", **sampling: Any) -> list[Any]:
        """One response per prompt, all requested at once. The same ``tag`` sends a prompt to the same server again."""
        client = self.cluster.client()
        prompts = self.prompts if prompts is None else prompts
        settings = {"temperature": 1.0, "max_tokens": RESPONSE_TOKENS, "logprobs": True} | sampling

        async def all_of_them() -> list[Any]:
            calls = [
                client.generate(f"{tag}{index}", prompt_ids=prompt.tolist(), sampling_params=dict(settings))
                for index, prompt in enumerate(prompts)
            ]
            return await asyncio.wait_for(asyncio.gather(*calls), 300)

        return asyncio.run(all_of_them())

    def pairs(self, outputs: Sequence[Any], prompts: Sequence[np.ndarray] | None = None) -> list[Any]:
        prompts = self.prompts if prompts is None else prompts
        responses = [np.array(output.token_ids, np.int32) for output in outputs]
        return list(zip(prompts, responses, strict=True))

    def gap(
        self, outputs: Sequence[Any], prompts: Sequence[np.ndarray] | None = None, temperature: float = 1.0
    ) -> float:
        """Largest difference between the servers' log-probabilities and the actor's. The servers are awake afterwards."""
        scores = self.cluster.log_probs(self.pairs(outputs, prompts), temperature=temperature)
        self.cluster.wake()
        return max(np.abs(np.array(out.log_probs) - score).max() for out, score in zip(outputs, scores, strict=True))

    def update(self, outputs: Sequence[Any]) -> None:
        """Change the weights a good deal: one optimizer step with a large learning rate. The servers sleep afterwards."""
        from verl_ext.batch import Sample

        pairs = self.pairs(outputs)
        scores = self.cluster.log_probs(pairs)
        samples = [
            Sample(
                prompt, response, {"old_log_probs": old, "advantages": np.full(len(old), (-1.0) ** index, np.float32)}
            )
            for index, ((prompt, response), old) in enumerate(zip(pairs, scores, strict=True))
        ]
        assert self.cluster.update(samples, mini_batch_size=len(samples), seed=self.version).applied

    def wake_without_sync(self) -> None:
        """Let the servers go on with the weights they have."""
        self.cluster._sync.wake_up_replicas()

    def update_awake(self, outputs: Sequence[Any]) -> None:
        """Update and sync while the servers never sleep, so that only the reset after the sync can empty their caches."""
        rollout = self.cluster.config.actor_rollout_ref.rollout
        rollout.free_cache_engine = False
        try:
            self.update(outputs)
            self.sync()
        finally:
            rollout.free_cache_engine = True

    @property
    def servers(self) -> int:
        """How many servers there are."""
        return len(self.cluster._server_actors())

    def on_servers(self, call: Any) -> list[Any]:
        """``call(server)`` within every server's process."""
        import ray

        return ray.get([server.__ray_call__.remote(call) for server in self.cluster._server_actors()], timeout=60)

    def from_each_server(self, prompt: np.ndarray, sampling: dict[str, Any]) -> list[Any]:
        """Every server's answer to one prompt."""
        import ray

        servers = self.cluster._server_actors()
        calls = [
            server.generate.remote(prompt.tolist(), dict(sampling), f"each{i}") for i, server in enumerate(servers)
        ]
        return ray.get(calls, timeout=60)

    def sync(self) -> None:
        self.version += 1
        self.cluster.sync_weights(self.version, timeout_s=120)


def cached(outputs: Sequence[Any]) -> int:
    """Prompt tokens that were not computed again."""
    return sum(output.extra_fields["num_cached_tokens"] or 0 for output in outputs)


@pytest.fixture(scope="session")
def cached_tokens() -> Any:
    return cached


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model of the shipped policy's size with random weights: small logits, so that fp32 is exact to 1e-6."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from rsipo.models import EMBEDDED_POLICY

    folder = tmp_path_factory.mktemp("model")
    config = AutoConfig.from_pretrained(EMBEDDED_POLICY, initializer_range=0.02, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_POLICY)
    assert len(tokenizer) == config.vocab_size, "veRL masks what the tokenizer does not know, on the servers only"
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def prompts() -> list[np.ndarray]:
    """Token ids, int32 [60..120] each."""
    rng = np.random.default_rng(0)
    return [rng.integers(5, 900, rng.integers(60, 120)).astype(np.int32) for _ in range(PROMPTS)]


@pytest.fixture(scope="session")
def lane_overrides(model: Path) -> list[str]:
    """The hardware profile ``cpu_vllm``, with a bucket so small that every sync takes several."""
    return [
        "hardware=cpu_vllm",
        "run.name=lane",
        f"policy.path={model}",
        f"trainer.n_gpus_per_node={WORLD}",
        "training.learning_rate=1e-3",
        "training.kl_coefficient=0",
        "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=1",
    ]


@pytest.fixture(scope="session", params=["replicas", "tensor_parallel"])
def lane(
    request: pytest.FixtureRequest,
    lane_overrides: list[str],
    prompts: list[np.ndarray],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lane]:
    """Two servers of one rank each, or one server of two ranks."""
    from rsipo.configuration import compose_run
    from rsipo.ray_cluster import ray_cluster
    from verl_ext.cluster import PolicyCluster

    parallel = WORLD if request.param == "tensor_parallel" else 1
    config = compose_run([*lane_overrides, f"actor_rollout_ref.rollout.tensor_model_parallel_size={parallel}"])
    memory = set(os.listdir("/dev/shm"))
    with ExitStack() as stack:
        stack.enter_context(ray_cluster(config, tmp_path_factory.mktemp("logs")))
        cluster = PolicyCluster(config, sync_deadline_s=300, routing_slack=config.workers.routing_slack)
        stack.callback(cluster.shutdown)
        cluster.start()
        yield Lane(cluster, prompts, stack.close, memory, end_of_turn=2)
