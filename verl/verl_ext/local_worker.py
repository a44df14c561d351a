"""A training worker in this process, without a Ray cluster: for benchmarks and tests."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig
from verl.utils.config import omega_conf_to_dataclass

from verl_ext.losses import PolicyLoss, TokenTerm
from verl_ext.verl_config import resolved
from verl_ext.workers import AgentTrainingWorker, actor_worker_config


def local_worker(config: DictConfig, token_terms: Sequence[TokenTerm] = ()) -> AgentTrainingWorker:
    """The actor of veRL's ``ppo_trainer`` configuration, with its model built and its loss set.

    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must be in the environment; all ranks call it together.
    """
    config = resolved(config)
    worker = AgentTrainingWorker(actor_worker_config(config))
    worker.reset()
    worker.set_loss_fn(PolicyLoss(omega_conf_to_dataclass(config.actor_rollout_ref.actor), token_terms))
    return worker
