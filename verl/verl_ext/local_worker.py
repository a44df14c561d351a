"""A training worker in this process, without a Ray cluster: for benchmarks and tests."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import TrainingWorkerConfig

from verl_ext.losses import PolicyLoss, TokenTerm
from verl_ext.workers import AgentTrainingWorker


def local_worker(config: DictConfig, token_terms: Sequence[TokenTerm] = ()) -> AgentTrainingWorker:
    """The actor of veRL's ``ppo_trainer`` configuration, with its model built and its loss set.

    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must be in the environment; all ranks call it together.
    """
    config = copy.deepcopy(config)
    OmegaConf.resolve(config)
    model_config = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    engine = actor.engine
    engine.use_dynamic_bsz = actor.use_dynamic_bsz
    engine.max_token_len_per_gpu = engine.infer_max_token_len_per_gpu = actor.ppo_max_token_len_per_gpu
    engine.micro_batch_size_per_gpu = engine.infer_micro_batch_size_per_gpu = actor.ppo_micro_batch_size_per_gpu
    worker = AgentTrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=model_config,
            engine_config=engine,
            optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint,
        )
    )
    worker.reset()
    worker.set_loss_fn(PolicyLoss(actor, token_terms))
    return worker
