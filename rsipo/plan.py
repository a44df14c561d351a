"""The plan of a run before anything starts: where every worker goes, which sizes must fit, how much memory is expected."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from omegaconf import DictConfig

from rsipo.models import ModelFacts
from rsipo.run_settings import RunSettings, SearchSection

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Check:
    """One rule about sizes: what it says with this run's numbers, whether it holds, and the remedy when it does not."""

    rule: str
    holds: bool
    remedy: str


@dataclass(slots=True)
class Plan:
    """Placement rows are (what, how many, where); memory rows (what, GiB per device or host)."""

    placement: list[tuple[str, int, str]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    memory: list[tuple[str, float]] = field(default_factory=list)

    def problems(self) -> list[str]:
        return [f"{check.rule}: {check.remedy}" for check in self.checks if not check.holds]


def make_plan(config: DictConfig, settings: RunSettings, model: ModelFacts) -> Plan:
    """Work out the plan of a run on ``model``."""
    plan = Plan()
    _place(plan, config, settings)
    _check_sizes(plan, config, settings, model)
    if config.trainer.device == "cpu":
        _host_memory(plan, config, settings, model)
    else:
        _device_memory(plan, config, settings, model)
    return plan


def _world(config: DictConfig) -> int:
    return int(config.trainer.nnodes) * int(config.trainer.n_gpus_per_node)


def _place(plan: Plan, config: DictConfig, settings: RunSettings) -> None:
    world, rollout, workers = _world(config), config.actor_rollout_ref.rollout, settings.workers
    device = "CPU (gloo)" if config.trainer.device == "cpu" else "GPU"
    trained = "actor + reference" if settings.training.kl_coefficient > 0 else "actor"
    servers = world // int(rollout.tensor_model_parallel_size) or 1
    beside = "beside the actor" if config.trainer.device == "cpu" else "same GPUs as the actor, taking turns"
    hosts = _environment_hosts(settings)
    plan.placement = [
        (f"{trained} (FSDP2, one process a rank)", world, device),
        (f"rollout server ({rollout.name}, tensor parallel {rollout.tensor_model_parallel_size})", servers, beside),
        ("rollout worker (asyncio)", workers.rollout_workers, "host CPU"),
        *([(f"environment host ({workers.slots_per_host} episodes each)", hosts, "host CPU")] if hosts else []),
        ("driver", 1, "host CPU"),
    ]


def _environment_hosts(settings: RunSettings) -> int:
    """Processes for environments alone; search needs none, its episodes wait in the rollout workers."""
    workers = settings.workers
    return 0 if isinstance(settings.env, SearchSection) else workers.rollout_workers * workers.env_hosts


def _check_sizes(plan: Plan, config: DictConfig, settings: RunSettings, model: ModelFacts) -> None:
    world, parallel = _world(config), int(config.actor_rollout_ref.rollout.tensor_model_parallel_size)
    prompt, skill, training = settings.prompt, settings.skill, settings.training
    budget = int(config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu)

    def check(rule: str, holds: bool, remedy: str) -> None:
        plan.checks.append(Check(rule, holds, remedy))

    check(f"{world} ranks divide by tensor parallel {parallel}", world % parallel == 0,
          "set actor_rollout_ref.rollout.tensor_model_parallel_size to a divisor of the ranks")  # fmt: skip
    check(f"ppo_mini_batch_size {training.ppo_mini_batch_size} >= {world} ranks", training.ppo_mini_batch_size >= world,
          "raise training.ppo_mini_batch_size: every rank needs a sample")  # fmt: skip
    if config.trainer.device == "cpu" and config.actor_rollout_ref.rollout.name == "vllm":
        largest = max(model.vocabulary, model.intermediate) * model.hidden * 4 / 2**20
        bucket = int(config.actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes)
        check(f"largest weight {largest:.1f} MB <= transfer bucket {bucket} MB", largest <= bucket,
              "raise actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes")  # fmt: skip
    plan.checks += unchunked(config, model.context_length)
    lengths = {"student turn": prompt.max_prompt_length + prompt.max_response_length}
    if settings.method.needs_skills:
        lengths["teacher turn"] = prompt.max_teacher_prompt_length + prompt.max_response_length
        lengths["analysis"] = skill.max_prompt_length + skill.max_tokens
        check(f"teacher prompt {prompt.max_teacher_prompt_length} >= student prompt {prompt.max_prompt_length}",
              prompt.max_teacher_prompt_length >= prompt.max_prompt_length,
              "raise prompt.max_teacher_prompt_length: the teacher sees the student's prompt and a skill")  # fmt: skip
    for name, length in lengths.items():
        check(f"{name} {length} tokens <= context {model.context_length}", length <= model.context_length,
              "lower prompt.max_* or skill.max_*, or take a model with a longer context")  # fmt: skip
        check(f"{name} {length} tokens <= micro-batch budget {budget}", length <= budget,
              "raise actor_rollout_ref.actor.ppo_max_token_len_per_gpu")  # fmt: skip


def unchunked(config: DictConfig, context_length: int) -> list[Check]:
    """Without chunked prefill a vLLM server must take its longest sequence in one pass; veRL fails on anything else."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.name != "vllm" or rollout.enable_chunked_prefill:
        return []
    longest, limit = int(rollout.max_model_len or context_length), int(rollout.max_num_batched_tokens)
    rule = f"longest sequence {longest} <= {limit} tokens in one pass of a server"
    return [
        Check(rule, longest <= limit, "raise actor_rollout_ref.rollout.max_num_batched_tokens, or set …max_model_len")
    ]


def _device_memory(plan: Plan, config: DictConfig, settings: RunSettings, model: ModelFacts) -> None:
    """Per GPU. Trainer and server take turns; what the trainer does not offload stays beside the server."""
    world, rollout, actor = _world(config), config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    total, tokens = float(config.hardware.device_memory_gib), int(actor.ppo_max_token_len_per_gpu)
    states = model.parameters * 16 / world / GIB  # fp32 master weights, gradients and two Adam moments, sharded
    kept_bytes = (0 if actor.fsdp_config.param_offload else 4) + (0 if actor.fsdp_config.optimizer_offload else 8)
    resident = model.parameters * kept_bytes / world / GIB
    reference = 0.0 if config.actor_rollout_ref.ref.fsdp_config.param_offload else model.parameters * 4 / world / GIB
    if settings.training.kl_coefficient == 0:
        reference = 0.0
    activations = tokens * model.hidden * model.layers * 2 / GIB  # one bf16 checkpoint a layer
    logits = tokens * model.vocabulary * 6 / GIB  # bf16 logits and their fp32 copy
    layer = 2 * model.parameters * 2 / model.layers / GIB  # two gathered bf16 layers
    training = states + reference + activations + logits + layer
    serving = total * float(rollout.gpu_memory_utilization)
    weights = model.parameters * 2 / int(rollout.tensor_model_parallel_size) / GIB
    cache = serving - weights
    plan.memory = [
        ("weights, gradients, optimizer (fp32, sharded)", states),
        ("reference policy (0 when offloaded or unused)", reference),
        (f"activations of {tokens} tokens (checkpointed)", activations),
        ("logits of a micro-batch", logits),
        ("training phase", training),
        ("rollout phase: weights and optimizer that stay", resident + reference),
        (f"rollout phase: {rollout.gpu_memory_utilization:.0%} of {total:.0f} GiB", serving),
        (f"of which KV cache ({cache * GIB / model.kv_bytes_per_token:,.0f} tokens)", cache),
    ]
    plan.checks.append(Check(f"training phase {training:.1f} GiB <= 90% of {total:.0f} GiB", training <= 0.9 * total,
                             "lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu, or take more GPUs"))  # fmt: skip
    beside = resident + reference
    rule = f"server {serving:.1f} + trainer's states {beside:.1f} GiB <= {total:.0f} GiB"
    plan.checks.append(Check(rule, serving + beside <= total,
                             "lower actor_rollout_ref.rollout.gpu_memory_utilization, or offload"))  # fmt: skip
    longest = settings.skill.max_prompt_length + settings.skill.max_tokens
    fits = cache * GIB >= 8 * longest * model.kv_bytes_per_token
    plan.checks.append(Check(f"KV cache holds 8 analyses of {longest} tokens", fits,
                             "raise gpu_memory_utilization or tensor_model_parallel_size"))  # fmt: skip


def _host_memory(plan: Plan, config: DictConfig, settings: RunSettings, model: ModelFacts) -> None:
    world, workers = _world(config), settings.workers
    copies = 16 + (4 if settings.training.kl_coefficient > 0 else 0) + 4  # training state, reference, server
    states = model.parameters * copies / GIB
    logits = int(config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu) * model.vocabulary * 12 / GIB * world
    hosts = _environment_hosts(settings)
    environments = hosts * (0.35 + 0.005 * workers.slots_per_host)
    server = 0.9
    if config.actor_rollout_ref.rollout.name == "vllm":  # server, engine and worker process, and the key/value cache
        server = 3.3 + float(os.environ.get("VLLM_CPU_KVCACHE_SPACE", 1))
    # Measured: a rank, a server, a rollout worker; the driver and Ray.
    processes = (1.2 + server) * world + 0.7 * workers.rollout_workers + 1.2
    needed = states + logits + environments + processes
    available = psutil.virtual_memory().available / GIB
    plan.memory = [
        ("model, optimizer, reference, server (fp32)", states),
        ("logits of a micro-batch", logits),
        ("environment hosts", environments),
        ("processes (Python, torch, Ray)", processes),
        ("host memory in all", needed),
    ]
    plan.checks.append(Check(f"{needed:.1f} GiB needed <= {available:.1f} GiB free", needed <= available,
                             "free memory, or lower workers.slots_per_host and ppo_max_token_len_per_gpu"))  # fmt: skip


def free_disk_check(directory: Path, needed_gib: float) -> Check:
    """Whether the run folder's disk can hold its checkpoints."""
    existing = next(path for path in [directory, *directory.absolute().parents] if path.exists())
    free = shutil.disk_usage(existing).free / GIB
    return Check(f"checkpoints {needed_gib:.1f} GiB <= {free:.1f} GiB free at {existing}", free >= needed_gib,
                 "free disk space, lower training.keep_checkpoints, or point RSIPO_WORK elsewhere")  # fmt: skip
