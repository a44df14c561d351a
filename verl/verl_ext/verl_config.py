"""veRL's own configuration: composed without importing veRL, checked before anything starts."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf


def verl_config_folder() -> Path:
    """Where the installed veRL keeps its Hydra configuration.

    Raises:
        ModuleNotFoundError: veRL is not installed.
    """
    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("verl is not installed; install this project with its cpu or gpu extra")
    return Path(spec.origin).parent / "trainer" / "config"


def load_verl_config(overrides: Sequence[str] = ()) -> DictConfig:
    """veRL's ``ppo_trainer`` configuration with Hydra overrides.

    Raises:
        ModuleNotFoundError: veRL is not installed.
    """
    with initialize_config_dir(str(verl_config_folder()), version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


def resolved(config: DictConfig) -> DictConfig:
    """A copy in which every interpolation has its value."""
    config = copy.deepcopy(config)
    OmegaConf.resolve(config)
    return config


def check_verl_config(config: DictConfig) -> None:
    """Find what would fail in a worker, or be ignored without a word.

    Raises:
        ValueError: naming the setting and what to do.
    """
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    optim = actor.optim
    if optim.lr_warmup_steps_ratio > 0 and optim.lr_warmup_steps <= 0 and optim.total_training_steps <= 0:
        raise ValueError("actor.optim.lr_warmup_steps_ratio needs actor.optim.total_training_steps, which is not set")
    if config.trainer.device == "cpu":
        for name in ("actor", "ref"):
            if {config.actor_rollout_ref[name].strategy, config.actor_rollout_ref[name].fsdp_config.strategy} != {
                "fsdp2"
            }:
                raise ValueError(f"{name}.strategy and {name}.fsdp_config.strategy must both be fsdp2 on a CPU")
    correction = config.algorithm.rollout_correction
    if correction.rollout_rs is not None or correction.bypass_mode:
        raise ValueError(
            "of algorithm.rollout_correction only rollout_is is supported; unset rollout_rs and bypass_mode"
        )
    if correction.rollout_is not in (None, "token", "sequence"):
        raise ValueError(
            f"algorithm.rollout_correction.rollout_is={correction.rollout_is}: set token, sequence or null"
        )
    if actor.ulysses_sequence_parallel_size > 1 and not config.actor_rollout_ref.model.use_remove_padding:
        raise ValueError(
            "actor.ulysses_sequence_parallel_size > 1 needs actor_rollout_ref.model.use_remove_padding=true"
        )
    dynamic = (rollout.log_prob_use_dynamic_bsz, config.actor_rollout_ref.ref.log_prob_use_dynamic_bsz)
    if set(dynamic) != {actor.use_dynamic_bsz}:
        raise ValueError("rollout. and ref.log_prob_use_dynamic_bsz must equal actor.use_dynamic_bsz")
    world = config.trainer.n_gpus_per_node * config.trainer.nnodes
    for name, size in (
        ("actor.ulysses_sequence_parallel_size", actor.ulysses_sequence_parallel_size),
        (
            "rollout tensor * data * pipeline parallel size",
            rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size,
        ),
    ):
        if world % size:
            raise ValueError(f"{name} = {size} does not divide trainer.n_gpus_per_node * trainer.nnodes = {world}")
