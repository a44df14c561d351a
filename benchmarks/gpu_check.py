"""Training throughput, log-probability parity and peak memory against a plain Hugging Face + FSDP2 loop, in one process.

    python benchmarks/gpu_check.py --size 1.7b          # one GPU, no network, no Ray cluster: weights are random
    python benchmarks/gpu_check.py --size tiny          # a CPU in seconds, to try the script

Both loops take the same steps on the same samples: forward, backward and AdamW on a policy-gradient loss over the response
tokens, in micro-batches of the same number of tokens, with gradient checkpointing. ``bash benchmarks/gpu_check.sh`` runs it
with a deadline. The model FLOP utilisation (MFU) counts 6 N FLOPs a token and 12 · layers · hidden · length for attention,
recomputation not included.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Optional

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from rsipo.models import EMBEDDED_POLICY

#: size -> (layers, hidden, heads, key/value heads, feed forward, vocabulary); the larger ones are Qwen2.5's and Qwen3's.
SIZES = {
    "tiny": (2, 64, 4, 2, 128, 2048),
    "0.5b": (24, 896, 14, 2, 4864, 151936),
    "1.7b": (28, 2048, 16, 8, 6144, 151936),
    "3b": (36, 2048, 16, 2, 11008, 151936),
}
#: Dense bf16 peak in FLOP/s by a part of the device's name, from the vendors' data sheets.
PEAK = {"H200": 989e12, "H100": 989e12, "H20": 148e12, "A100": 312e12}
LEARNING_RATE = 1e-6


@dataclass(frozen=True)
class Job:
    """What both loops do. ``ids`` int64 [sequences, length]; the last ``response`` tokens are trained on."""

    folder: Path
    ids: np.ndarray
    advantages: np.ndarray
    response: int
    micro_batch: int
    device: str
    attention: str

    @property
    def tokens(self) -> int:
        return self.ids.size


@dataclass(frozen=True)
class Outcome:
    """``seconds`` per step; ``log_probs`` float32 [sequences, response] before the first step; ``peak_gib`` of device memory."""

    seconds: float
    log_probs: np.ndarray
    peak_gib: float


def main(
    size: Annotated[str, typer.Option(help=f"One of {', '.join(SIZES)}.")] = "1.7b",
    sequences: Annotated[int, typer.Option(min=1, help="Samples of a step.")] = 32,
    length: Annotated[int, typer.Option(min=8, help="Tokens of a sample.")] = 2560,
    response: Annotated[int, typer.Option(min=1, help="Of these, trained on.")] = 512,
    micro_batch_tokens: Annotated[int, typer.Option(min=8)] = 20480,
    steps: Annotated[int, typer.Option(min=1, help="Measured, after one to warm up.")] = 3,
    out: Annotated[Optional[Path], typer.Option(help="Also write the numbers there, as JSON.")] = None,
) -> None:
    """Run both loops one after the other and print their numbers and ratio."""
    if size not in SIZES:
        raise typer.BadParameter(f"{size}: known are {', '.join(SIZES)}", param_hint="--size")
    if size == "tiny":
        length, response, micro_batch_tokens = min(length, 96), min(response, 32), min(micro_batch_tokens, 384)
    if response >= length:
        raise typer.BadParameter(f"{response} must be less than --length {length}", param_hint="--response")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    single_process(device)
    with tempfile.TemporaryDirectory() as scratch:
        parameters = random_model(Path(scratch), size)
        job = make_job(Path(scratch), SIZES[size][-1], sequences, length, response, micro_batch_tokens, device)
        typer.echo(f"{parameters / 1e9:.2f} G parameters, {job.tokens} tokens a step, {device}", err=True)
        plain = run(plain_loop, job, steps, "plain")
        missing = [name for name in ("verl", "ray") if importlib.util.find_spec(name) is None]
        if missing:
            typer.echo(f"{' and '.join(missing)} not installed here: the plain loop alone", err=True)
        ours = None if missing else run(project_loop, job, steps, "rsipo")
    numbers = report(plain, ours, job, parameters, size)
    if out is not None:
        out.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


def single_process(device: str) -> None:
    """A process group of one: both loops shard over it as over many."""
    if device == "cpu":
        os.environ.setdefault("VERL_PLATFORM", "cpu")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.distributed.init_process_group("gloo" if device == "cpu" else "nccl")


def random_model(folder: Path, size: str) -> int:
    """Write a Qwen2 with random weights (bf16) and the embedded policy's tokenizer; returns the number of its parameters."""
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    layers, hidden, heads, shared, feed_forward, vocabulary = SIZES[size]
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config).bfloat16()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(EMBEDDED_POLICY).save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def make_job(
    folder: Path, vocabulary: int, sequences: int, length: int, response: int, budget: int, device: str
) -> Job:
    """Random samples; micro-batches of as many whole samples as the budget of tokens holds."""
    draw = np.random.default_rng(0)
    ids = draw.integers(5, vocabulary, size=(sequences, length), dtype=np.int64)
    advantages = np.resize(np.array([1.0, -1.0], np.float32), sequences)
    attention = "sdpa"
    if device == "cuda":
        from transformers.utils import is_flash_attn_2_available

        attention = "flash_attention_2" if is_flash_attn_2_available() else "sdpa"
    return Job(folder, ids, advantages, response, max(1, budget // length), device, attention)


def run(
    loop: Callable[[Job], tuple[Callable[[], np.ndarray], Callable[[], None]]], job: Job, steps: int, name: str
) -> Outcome:
    """Score, warm up, measure."""
    gc.collect()  # what the other loop held
    if job.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    score, step = loop(job)
    log_probs = score()
    times = []
    for number in range(steps + 1):
        start = time.perf_counter()
        step()
        if job.device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        typer.echo(f"{name}: step {number} {times[-1]:.2f} s", err=True)
    peak = torch.cuda.max_memory_allocated() / 2**30 if job.device == "cuda" else 0.0
    return Outcome(min(times[1:]), log_probs, peak)


def plain_loop(job: Job) -> tuple[Callable[[], np.ndarray], Callable[[], None]]:
    """Hugging Face and FSDP2 by hand; fp32 master weights, bf16 compute."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(job.folder, dtype=torch.float32, attn_implementation=job.attention)
    model.to(job.device).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    mesh = torch.distributed.init_device_mesh(job.device, (1,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    ids = torch.from_numpy(job.ids).to(job.device)
    advantages = torch.from_numpy(job.advantages).to(job.device)
    count = len(ids) * job.response

    def log_probs(rows: slice) -> torch.Tensor:
        logits = model(input_ids=ids[rows], use_cache=False, logits_to_keep=job.response + 1).logits[:, :-1]
        targets = ids[rows, -job.response :]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
        return -loss.view(targets.shape)

    rows = [slice(start, start + job.micro_batch) for start in range(0, len(ids), job.micro_batch)]

    def score() -> np.ndarray:
        with torch.no_grad():
            return torch.cat([log_probs(part) for part in rows]).float().cpu().numpy()

    def step() -> None:
        optimizer.zero_grad()
        for part in rows:
            ratio = log_probs(part)
            (-(torch.exp(ratio - ratio.detach()) * advantages[part, None]).sum() / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return score, step


def project_loop(job: Job) -> tuple[Callable[[], np.ndarray], Callable[[], None]]:
    """This project's training worker on veRL's FSDP2 engine, as a run uses it, in this process."""
    from verl_ext.batch import Sample, plan_update
    from verl_ext.local_worker import local_worker
    from verl_ext.verl_config import load_verl_config

    budget = job.micro_batch * job.ids.shape[1]
    packed = "true" if job.device == "cuda" else "false"
    config = load_verl_config(
        [
            f"actor_rollout_ref.model.path={job.folder}",
            f"+actor_rollout_ref.model.override_config.attn_implementation={job.attention}",
            f"actor_rollout_ref.model.use_remove_padding={packed}",
            "actor_rollout_ref.model.enable_gradient_checkpointing=true",
            "actor_rollout_ref.actor.strategy=fsdp2",
            "actor_rollout_ref.actor.fsdp_config.strategy=fsdp2",
            "actor_rollout_ref.actor.use_dynamic_bsz=true",
            "actor_rollout_ref.actor.use_torch_compile=false",
            "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
            f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={budget}",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={len(job.ids)}",
            "actor_rollout_ref.actor.use_kl_loss=false",
            "actor_rollout_ref.actor.entropy_coeff=0",
            f"actor_rollout_ref.actor.optim.lr={LEARNING_RATE}",
            f"trainer.device={job.device}",
        ]
    )
    worker = local_worker(config)
    split = job.ids.shape[1] - job.response
    pairs = [(row[:split], row[split:]) for row in job.ids]

    def score() -> np.ndarray:
        scores = worker.log_probs([Sample(*pair) for pair in pairs], 1.0)
        return np.stack(scores) if scores is not None else np.empty(0)

    old = score()

    def step() -> None:
        samples = [
            Sample(*pair, {"old_log_probs": old[index], "advantages": np.full(job.response, job.advantages[index])}, {})
            for index, pair in enumerate(pairs)
        ]
        (share,) = plan_update(samples, [], mini_batch_size=len(samples), dp=1, seed=0)
        worker.update_policy(share)

    return score, step


def report(plain: Outcome, ours: Outcome | None, job: Job, parameters: int, size: str) -> dict[str, Any]:
    """Print the table; returns its numbers."""
    layers, hidden = SIZES[size][:2]
    flops = job.tokens * (6 * parameters + 12 * layers * hidden * job.ids.shape[1])
    name = torch.cuda.get_device_name() if job.device == "cuda" else "CPU"
    peak = next((value for part, value in PEAK.items() if part in name), None)
    table = Table("loop", "seconds a step", "tokens/s", "MFU", "peak GiB", title=f"{name}, {size}, {job.attention}")
    numbers: dict[str, Any] = {"device": name, "size": size, "parameters": parameters, "tokens": job.tokens}
    for label, outcome in (("plain", plain), *([("rsipo", ours)] if ours else [])):
        speed = job.tokens / outcome.seconds
        mfu = flops / outcome.seconds / peak if peak else None
        table.add_row(
            label,
            f"{outcome.seconds:.3f}",
            f"{speed:,.0f}",
            f"{mfu:.1%}" if mfu else "unknown peak",
            f"{outcome.peak_gib:.1f}",
        )
        numbers[label] = {"seconds": outcome.seconds, "tokens_per_s": speed, "mfu": mfu, "peak_gib": outcome.peak_gib}
    console = Console(soft_wrap=True)
    console.print(table)
    if ours is not None:
        gap = np.abs(plain.log_probs - ours.log_probs)
        numbers |= {"ratio": plain.seconds / ours.seconds, "gap_mean": float(gap.mean()), "gap_max": float(gap.max())}
        console.print(
            f"throughput rsipo / plain: {numbers['ratio']:.2f}; "
            f"log-probabilities differ by {gap.mean():.2e} on average, {gap.max():.2e} at most"
        )
    return numbers


if __name__ == "__main__":
    typer.run(main)
