"""The CPU rollout servers behind veRL's own managers, on a real Ray cluster with one and with two training ranks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
import pytest
import ray
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from verl_ext.batch import Sample
from verl_ext.cluster import PolicyCluster
from verl_ext.generation import GenerationError
from verl_ext.rollout_server import pack_tensor
from verl_ext.sampling import SamplingError
from verl_ext.verl_config import load_verl_config
from verl_ext.weights import WeightUpdateError

pytestmark = pytest.mark.ray

CONTEXT = 128
NUM_PROMPTS = 12
END_IDS = {0, 1}


@pytest.fixture(scope="module")
def tied_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 with tied embeddings and two ids in its generation configuration that end a response."""
    folder = tmp_path_factory.mktemp("tied_model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_end|>"]
    bpe = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(special + alphabet)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.1,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    model.save_pretrained(folder)
    return folder


def overrides(model: Path, world: int, free_cache_engine: bool) -> list[str]:
    precision = "mixed_precision={param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}"
    return [
        "trainer.device=cpu",
        f"trainer.n_gpus_per_node={world}",
        "trainer.nnodes=1",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.actor.strategy=fsdp2",
        "actor_rollout_ref.actor.fsdp_config.strategy=fsdp2",
        f"+actor_rollout_ref.actor.fsdp_config.{precision}",
        "actor_rollout_ref.actor.use_torch_compile=false",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
        "actor_rollout_ref.actor.use_dynamic_bsz=true",
        "actor_rollout_ref.actor.use_kl_loss=false",
        "actor_rollout_ref.actor.optim.lr=3e-3",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
        "actor_rollout_ref.ref.strategy=fsdp2",
        "actor_rollout_ref.ref.fsdp_config.strategy=fsdp2",
        "actor_rollout_ref.rollout.name=cpu",
        "actor_rollout_ref.rollout.dtype=float32",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "actor_rollout_ref.rollout.max_num_seqs=4",
        f"actor_rollout_ref.rollout.free_cache_engine={free_cache_engine}",
        # Smaller than the model, so that an update comes in several parts.
        "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=0",
    ]


@pytest.fixture(scope="module", params=[(1, False), (2, True)], ids=["world1", "world2"])
def cluster(request: pytest.FixtureRequest, tied_model: Path, small_ray: Callable) -> Iterator[PolicyCluster]:
    """Servers that stay awake beside one rank; servers that sleep during training beside two ranks."""
    world, free_cache_engine = request.param
    with small_ray(world):
        policy = PolicyCluster(load_verl_config(overrides(tied_model, world, free_cache_engine)))
        try:
            policy.start()
            yield policy
        finally:
            policy.shutdown()


def servers(cluster: PolicyCluster) -> list[Any]:
    return [ray.get_actor(f"cpu_server_{rank}_0") for rank in range(cluster.config.trainer.n_gpus_per_node)]


def prompts(seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(2, 258, rng.integers(1, 40)).tolist() for _ in range(NUM_PROMPTS)]


def generate(cluster: PolicyCluster, inputs: list[list[int]], **params: Any) -> list[Any]:
    client = cluster.client()
    params = {"temperature": 0.8, "max_tokens": 20, "logprobs": True, **params}

    async def run() -> list[Any]:
        calls = [
            client.generate(f"r{index}", prompt_ids=prompt, sampling_params={"seed": index, **params})
            for index, prompt in enumerate(inputs)
        ]
        return await asyncio.gather(*calls)

    return asyncio.run(run())


def largest_gap(cluster: PolicyCluster, inputs: list[list[int]], outputs: list[Any]) -> float:
    """max |log-probability of the rollout - of the actor| over all tokens."""
    pairs = [(np.array(p, np.int32), np.array(o.token_ids, np.int32)) for p, o in zip(inputs, outputs, strict=True)]
    scores = cluster.log_probs(pairs, temperature=0.8)
    return max(float(np.abs(score - output.log_probs).max()) for score, output in zip(scores, outputs, strict=True))


def train(cluster: PolicyCluster, inputs: list[list[int]], outputs: list[Any]) -> None:
    samples = [
        Sample(
            np.array(prompt, np.int32),
            np.array(output.token_ids, np.int32),
            {
                "old_log_probs": np.array(output.log_probs, np.float32),
                "advantages": np.full(len(output.token_ids), (-1.0) ** index, np.float32),
            },
        )
        for index, (prompt, output) in enumerate(zip(inputs, outputs, strict=True))
    ]
    assert cluster.update(samples, mini_batch_size=6, seed=0, temperature=0.8).applied


def test_rollout_and_actor_agree_after_every_sync_and_only_then(cluster: PolicyCluster) -> None:
    for version in range(3):
        inputs = prompts(version)
        outputs = generate(cluster, inputs)
        assert {output.extra_fields["global_steps"] for output in outputs} == {version}
        assert largest_gap(cluster, inputs, outputs) < 1e-5
        train(cluster, inputs, outputs)
        ray.get([server.wake_up.remote() for server in servers(cluster)])
        stale = generate(cluster, inputs)
        assert {output.extra_fields["global_steps"] for output in stale} == {version}
        assert largest_gap(cluster, inputs, stale) > 1e-3
        cluster.sync_weights(version + 1)


def test_all_replicas_serve_and_a_seed_decides_the_tokens(cluster: PolicyCluster) -> None:
    inputs = prompts(7)
    outputs = generate(cluster, inputs)
    for server in servers(cluster):
        params = {"temperature": 0.8, "max_tokens": 20, "seed": 3}
        assert ray.get(server.generate.remote(inputs[3], params, "direct")).token_ids == outputs[3].token_ids


def test_each_end_of_sequence_id_ends_a_response(cluster: PolicyCluster) -> None:
    outputs = generate(cluster, prompts(8) * 8, temperature=2.0, max_tokens=40)
    for output in outputs:
        assert not END_IDS & set(output.token_ids[:-1])
        ended = output.token_ids[-1] in END_IDS
        assert output.stop_reason == ("completed" if ended else "length")
        assert ended or len(output.token_ids) == 40
    assert {output.token_ids[-1] for output in outputs} >= END_IDS


def test_bad_requests_are_errors_of_their_own(cluster: PolicyCluster) -> None:
    server = servers(cluster)[0]
    good = server.generate.remote([5, 6], {"temperature": 0.0, "max_tokens": 5}, "good")
    too_long = server.generate.remote([5] * CONTEXT, {"max_tokens": 5}, "long")
    unknown = server.generate.remote([5], {"beam_width": 5}, "unknown")
    image = server.generate.remote([5], {}, "image", image_data=["picture"])
    with pytest.raises(SamplingError, match=f"{CONTEXT} tokens, but the model's context is {CONTEXT}"):
        ray.get(too_long)
    with pytest.raises(SamplingError, match=r"unknown sampling parameters \['beam_width'\]"):
        ray.get(unknown)
    with pytest.raises(SamplingError, match="text only"):
        ray.get(image)
    assert 1 <= len(ray.get(good).token_ids) <= 5


def test_abort_holds_requests_back_until_resumed(cluster: PolicyCluster) -> None:
    server = servers(cluster)[0]
    endless = {"max_tokens": CONTEXT, "ignore_eos": True, "seed": 1}
    running = [server.generate.remote([5], dict(endless), f"running{index}") for index in range(8)]
    ray.get(server.abort_all_requests.remote())
    held = server.generate.remote([5], {"max_tokens": 3}, "held")
    assert ray.wait([held], timeout=1)[0] == []
    ray.get(server.resume_generation.remote())
    assert ray.get(held).token_ids
    assert all(len(ray.get(call).token_ids) < CONTEXT for call in running)
    ray.get(server.abort_all_requests.remote(reject_request=True))
    rejected = ray.get(server.generate.remote([5], {"max_tokens": 3}, "rejected"))
    assert (rejected.token_ids, rejected.stop_reason) == ([], "aborted")
    ray.get(server.resume_generation.remote())


def test_a_sleeping_server_refuses_instead_of_hanging(cluster: PolicyCluster) -> None:
    server = servers(cluster)[0]
    ray.get(server.sleep.remote())
    if cluster.config.actor_rollout_ref.rollout.free_cache_engine:
        with pytest.raises(GenerationError, match="the server sleeps"):
            ray.get(server.generate.remote([5], {"max_tokens": 3}, "early"))
    ray.get(server.wake_up.remote(["weights"]))
    ray.get(server.wake_up.remote(["kv_cache"]))
    assert ray.get(server.generate.remote([5], {"max_tokens": 3}, "late")).token_ids


def test_an_update_that_does_not_fit_or_is_incomplete_changes_nothing(cluster: PolicyCluster) -> None:
    server = servers(cluster)[0]
    before = ray.get(server.generate.remote([5, 6], {"temperature": 0.0, "max_tokens": 9}, "before"))
    norm = "model.norm.weight"
    with pytest.raises(WeightUpdateError, match=r"'model.norm.weight' has shape \[3\]"):
        ray.get(server.stage_weights.remote("a", {norm: pack_tensor(torch.zeros(3))}))
    with pytest.raises(WeightUpdateError, match=r"unexpected weight 'model\.extra'"):
        ray.get(server.stage_weights.remote("b", {"model.extra": pack_tensor(torch.zeros(3))}))
    ray.get(server.stage_weights.remote("c", {norm: pack_tensor(torch.zeros(32, dtype=torch.bfloat16))}))
    with pytest.raises(WeightUpdateError, match="weights are missing"):
        ray.get(server.commit_weights.remote("c", 99))
    assert ray.get(server.generate.remote([5, 6], {"temperature": 0.0, "max_tokens": 9}, "after")) == before


def test_a_dead_server_is_an_error_for_callers_and_no_replica_changes(cluster: PolicyCluster) -> None:
    *alive, doomed = servers(cluster)
    version = ray.get(doomed.status.remote())["version"]
    waiting = doomed.generate.remote([5], {"max_tokens": CONTEXT, "ignore_eos": True}, "waiting")
    ray.kill(doomed)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get([waiting, doomed.generate.remote([5], {"max_tokens": CONTEXT}, "later")], timeout=60)
    # veRL's own call: `sync_weights` would find the dead server before any weights travel.
    with pytest.raises(WeightUpdateError, match="could not stage the weights on every server"):
        cluster._sync.update_weights(99)
    assert all(ray.get(server.status.remote())["version"] == version for server in alive)


def test_replica_takes_one_rank_only() -> None:
    from verl_ext.rollout_cpu import CPUReplica

    replica = SimpleNamespace(world_size=2)
    with pytest.raises(ValueError, match="tensor_model_parallel_size"):
        asyncio.run(CPUReplica.launch_servers(replica))
