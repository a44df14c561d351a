"""Supervised training of the embedded policy from scratch: a plain AdamW loop that one CPU core finishes in minutes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from rsipo.embedded.demonstrations import Demonstration

_SORT_WINDOW = 4096


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of the warm start.

    Attributes:
        tokens: training tokens in all, padding included.
        batch_tokens: tokens per batch; batches hold samples of about equal length.
        learning_rate: of AdamW; constant for the first half, then linear down to ``final_rate`` of it.
        prompt_weight: weight of the language-model loss on the prompts, which teaches the texts themselves.
        init_std: standard deviation of the initial weights. 0.08 learns to copy in a third fewer tokens than 0.02.
    """

    tokens: int = 8_000_000
    batch_tokens: int = 2_000
    learning_rate: float = 2.5e-3
    warmup_steps: int = 40
    final_rate: float = 0.03
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    prompt_weight: float = 0.2
    init_std: float = 0.08
    layers: int = 3
    width: int = 128
    feed_forward: int = 384
    heads: int = 4


@dataclass(frozen=True, slots=True)
class Sample:
    """A tokenised demonstration; ``ids`` uint16 [P + R] holds prompt and response, ``prompt_length`` is P."""

    ids: np.ndarray
    prompt_length: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Where training stands: tokens seen, optimiser steps, and both losses in nats per token."""

    tokens: int
    step: int
    response_loss: float
    prompt_loss: float


def new_model(tokenizer: PreTrainedTokenizerBase, recipe: Recipe) -> Qwen2ForCausalLM:
    """A freshly initialised Qwen2 model with one embedding row per token of the tokenizer, in float32."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        intermediate_size=recipe.feed_forward,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        initializer_range=recipe.init_std,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def encode(demonstrations: Sequence[Demonstration], tokenizer: PreTrainedTokenizerBase) -> list[Sample]:
    """Tokenise prompt and answer separately, as a rollout does; every answer ends with the end-of-turn token."""
    prompts = [
        tokenizer.apply_chat_template(d.messages, tokenize=False, add_generation_prompt=True) for d in demonstrations
    ]
    prompt_ids = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    answer_ids = tokenizer([d.answer for d in demonstrations], add_special_tokens=False)["input_ids"]
    return [
        Sample(np.asarray([*prompt, *answer, tokenizer.eos_token_id], dtype=np.uint16), len(prompt))
        for prompt, answer in zip(prompt_ids, answer_ids, strict=True)
    ]


def train(
    model: Qwen2ForCausalLM,
    samples: Sequence[Sample],
    recipe: Recipe,
    *,
    seed: int,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Train in place. Deterministic for a seed and a number of threads.

    Loss of a batch: mean cross-entropy of the response tokens + ``prompt_weight`` x that of the prompt tokens.
    """
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=recipe.weight_decay
    )
    progress = Progress(0, 0, 0.0, 0.0)
    for batch in _batches(samples, recipe.batch_tokens, random.Random(seed)):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _schedule(progress, recipe)
        ids, is_response, is_prompt = _collate(batch)
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        logits, targets = model.lm_head(hidden), ids[:, 1:]
        response_loss = F.cross_entropy(logits[is_response], targets[is_response])
        prompt_loss = F.cross_entropy(logits[is_prompt], targets[is_prompt])
        (response_loss + recipe.prompt_weight * prompt_loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        progress = Progress(progress.tokens + ids.numel(), progress.step + 1, response_loss.item(), prompt_loss.item())
        report(progress)
        if progress.tokens >= recipe.tokens:
            break
    model.eval()
    return progress


def _schedule(progress: Progress, recipe: Recipe) -> float:
    """Share of the learning rate: linear warm-up, flat, then linear decay over the second half."""
    warmup = min(1.0, (progress.step + 1) / recipe.warmup_steps)
    remaining = max(0.0, 1.0 - progress.tokens / recipe.tokens)
    return warmup * (recipe.final_rate + (1.0 - recipe.final_rate) * min(1.0, 2.0 * remaining))


def _batches(samples: Sequence[Sample], batch_tokens: int, rng: random.Random) -> Iterator[list[Sample]]:
    """Endless batches of samples of about equal length, so that little of them is padding."""
    for _ in itertools.count():
        order = rng.sample(range(len(samples)), len(samples))
        for start in range(0, len(order), _SORT_WINDOW):
            window = sorted((samples[i] for i in order[start : start + _SORT_WINDOW]), key=lambda s: len(s.ids))
            batches: list[list[Sample]] = [[]]
            for sample in window:  # ascending, so the newest sample sets the batch's width
                if batches[-1] and len(sample.ids) * (len(batches[-1]) + 1) > batch_tokens:
                    batches.append([])
                batches[-1].append(sample)
            rng.shuffle(batches)
            yield from batches


def _collate(batch: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Right-padded ids int64 [B, L], and the masks bool [B, L-1] of response and of prompt targets."""
    width = max(len(sample.ids) for sample in batch)
    ids = np.zeros((len(batch), width), dtype=np.int64)
    for row, sample in enumerate(batch):
        ids[row, : len(sample.ids)] = sample.ids
    position = np.arange(1, width)
    prompt_length = np.array([[sample.prompt_length] for sample in batch])
    length = np.array([[len(sample.ids)] for sample in batch])
    is_prompt = position < prompt_length
    is_response = (position >= prompt_length) & (position < length)
    return torch.from_numpy(ids), torch.from_numpy(is_response), torch.from_numpy(is_prompt)
