"""A tiny random Qwen2 policy, and samples in the form the PPO update takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
import pytest

VOCABULARY = 320
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random two-layer Qwen2 (fp32, about 0.1 M parameters) with a byte-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("tiny_model")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(["go to shelf 1. take apple 2 from table 1."] * 20, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def make_samples() -> Callable:
    """``make_samples(count, seed)``: ragged samples with the fields of PPO, KL and OPSD, scored near the policy."""
    from verl_ext.batch import Sample

    def make(count: int, seed: int) -> list[Sample]:
        rng = np.random.default_rng(seed)
        samples = []
        for _ in range(count):
            prompt = rng.integers(3, 300, rng.integers(4, 20)).astype(np.int32)
            response = rng.integers(3, 300, rng.integers(2, 12)).astype(np.int32)
            scores = {
                name: rng.normal(-5.8, 0.3, len(response)).astype(np.float32)
                for name in ("old_log_probs", "ref_log_prob", "teacher_log_probs")
            }
            advantages = np.full(len(response), rng.normal(), np.float32)
            tokens = scores | {"advantages": advantages}
            samples.append(Sample(prompt, response, tokens, {"trust": float(rng.uniform(0, 2))}))
        return samples

    return make


@pytest.fixture(scope="session")
def make_auxiliary() -> Callable:
    """``make_auxiliary(rewards, seed)``: one skill sample per reward, masked but for its first token."""
    from verl_ext.batch import Sample

    def make(rewards: list[float], seed: int) -> list[Sample]:
        rng = np.random.default_rng(seed)
        samples = []
        for reward in rewards:
            response = rng.integers(3, 300, rng.integers(4, 12)).astype(np.int32)
            mask = (np.arange(len(response)) > 0).astype(np.float32)
            prompt = rng.integers(3, 300, rng.integers(4, 20)).astype(np.int32)
            samples.append(
                Sample(prompt, response, {"mask": mask}, {"reward": reward, "num_tasks": float(len(rewards))})
            )
        return samples

    return make


@pytest.fixture(scope="session")
def verl_overrides(tiny_model: Path) -> list[str]:
    """veRL settings of the tiny policy on a CPU: fp32, FSDP2, KL and entropy on, 64 tokens per micro-batch."""
    overrides = [
        "trainer.device=cpu",
        f"actor_rollout_ref.model.path={tiny_model}",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.model.use_remove_padding=True",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=64",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.kl_loss_coef=0.05",
        "actor_rollout_ref.actor.entropy_coeff=0.01",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=64",
    ]
    for role in ("actor_rollout_ref.actor", "actor_rollout_ref.ref"):
        overrides += [
            f"{role}.strategy=fsdp2",
            f"{role}.fsdp_config.strategy=fsdp2",
            f"{role}.use_torch_compile=False",
            f"{role}.fsdp_config.use_torch_compile=False",
            f"+{role}.fsdp_config.mixed_precision.param_dtype=fp32",
        ]
    return overrides
