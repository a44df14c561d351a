"""What every warm start does: a tokenizer, supervised training, a checkpoint, and a note of how it was made."""

from __future__ import annotations

import json
import platform
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerBase

from rsipo.embedded.demonstrations import Demonstration
from rsipo.embedded.play import Policy
from rsipo.embedded.train import Progress, Recipe, encode, new_model, train

PROVENANCE = "provenance.json"

ReportProgress = Callable[[str, int, int], None]
"""(stage, done, total)."""


def refuse_a_model(out: Path) -> None:
    """Raise FileExistsError where ``out`` already holds a model."""
    if (out / "model.safetensors").exists():
        raise FileExistsError(f"{out} already holds a model: choose another folder, or remove it first")


def train_policy(
    demonstrations: Sequence[Demonstration],
    train_tokenizer: Callable[[Sequence[str]], PreTrainedTokenizerBase],
    recipe: Recipe,
    *,
    tokenizer_samples: int,
    seed: int,
    progress: ReportProgress,
) -> tuple[Policy, Progress]:
    """A new policy trained on the demonstrations, its tokenizer on ``tokenizer_samples`` of them."""
    chosen = random.Random(seed).sample(demonstrations, min(len(demonstrations), tokenizer_samples))
    texts = [message["content"] for d in chosen for message in d.messages] + [d.answer for d in chosen]
    tokenizer = train_tokenizer(texts)
    samples = encode(demonstrations, tokenizer)
    torch.manual_seed(seed)
    model = new_model(tokenizer, recipe)
    last = train(
        model, samples, recipe, seed=seed,
        report=lambda now: progress("train", min(now.tokens, recipe.tokens), recipe.tokens),
    )  # fmt: skip
    return Policy(model, tokenizer), last


def save_policy(policy: Policy, out: Path) -> None:
    """Half the size in bfloat16; whoever trains it loads it in float32."""
    out.mkdir(parents=True, exist_ok=True)
    policy.model.bfloat16().save_pretrained(out)
    policy.tokenizer.save_pretrained(out)


def write_provenance(out: Path, made: Any) -> None:
    """``provenance.json`` of a dataclass that says how the checkpoint was made and how it plays."""
    (out / PROVENANCE).write_text(json.dumps(asdict(made), indent=2) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Of what a checkpoint's bytes depend on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
