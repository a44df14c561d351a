"""The driver's side of veRL's rollout servers that veRL leaves open: configuring them for this project, and ending them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import ray
from omegaconf import DictConfig, open_dict
from ray.actor import ActorHandle

from verl_ext.vllm_transfer import RECEIVERS

_GRACE_S = 10.0


def use_receiver(config: DictConfig) -> None:
    """Have vLLM's workers extended by this project's weight receiver, unless the configuration names another one."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.name != "vllm" or config.trainer.device not in RECEIVERS:
        return
    with open_dict(rollout):
        arguments = rollout.engine_kwargs.setdefault("vllm", {})
        if arguments.get("worker_extension_cls") is None:
            arguments["worker_extension_cls"] = RECEIVERS[config.trainer.device]


def check_bucket(config: DictConfig) -> None:
    """Whether the largest weight fits the transfer bucket where it has to: without CUDA's IPC a weight is never split.

    Raises:
        ValueError: it does not; the message says what to set.
    """
    rollout = config.actor_rollout_ref.rollout
    if rollout.name != "vllm" or config.trainer.device != "cpu":
        return
    megabytes = rollout.checkpoint_engine.update_weights_bucket_megabytes
    name, size = largest_weight(Path(config.actor_rollout_ref.model.path))
    if size > megabytes << 20:
        raise ValueError(
            f"rollout.checkpoint_engine.update_weights_bucket_megabytes={megabytes} is too small: {name} takes "
            f"{size / 2**20:.1f} MB in float32; set it to {-(-size >> 20)} or more"
        )


def largest_weight(model: Path) -> tuple[str, int]:
    """Name and float32 bytes of the largest tensor in a folder's safetensors files; ``("", 0)`` without any."""
    from safetensors import safe_open

    largest = ("", 0)
    for path in model.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  not a mapping
                size = 4
                for length in file.get_slice(name).get_shape():
                    size *= length
                largest = max(largest, (name, size), key=lambda item: item[1])
    return largest


def server_actors(backend: str) -> list[ActorHandle]:
    """Every rollout server of this driver, also one that is still starting; found by the names veRL gives them."""
    return [ray.get_actor(name) for name in ray.util.list_named_actors() if name.startswith(f"{backend}_server_")]


def local_processes(actors: Sequence[ActorHandle], timeout_s: float) -> list[psutil.Process]:
    """The processes of those actors that run on this machine and answer in time."""
    here = ray.get_runtime_context().get_node_id()
    calls: list[Any] = [actor.__ray_call__.remote(_where) for actor in actors]
    answered, _ = ray.wait(calls, num_returns=len(calls), timeout=timeout_s) if calls else ([], [])
    found = []
    for call in answered:
        try:
            node, pid = ray.get(call)
            found += [psutil.Process(pid)] if node == here else []
        except (ray.exceptions.RayError, psutil.NoSuchProcess):
            continue
    return found


def stop_engines(servers: Sequence[ActorHandle]) -> None:
    """Let every vLLM engine end its processes and free its shared memory; gives up on those that do not in time."""
    calls: list[Any] = [server.__ray_call__.remote(_stop_engine) for server in servers]
    if calls:
        ray.wait(calls, num_returns=len(calls), timeout=_GRACE_S + 5)


def _stop_engine(server: Any) -> None:
    if (engine := getattr(server, "engine", None)) is not None:
        engine.shutdown(timeout=_GRACE_S)


def _where(_actor: Any) -> tuple[str, int]:
    return ray.get_runtime_context().get_node_id(), os.getpid()
