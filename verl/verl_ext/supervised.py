"""Supervised fine-tuning on veRL's engine: the workers of RL training with a likelihood loss, without rollout servers.

veRL's own SFT trainer drops the last batch of an epoch. Its engine and its workers are used here, its loop is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from torch import Tensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import TrainingWorkerConfig
from verl.workers.utils.padding import no_padding_2_padding

from verl_ext.batch import Sample, check_samples, plan_mini_batches, rows_per_rank
from verl_ext.platform_cpu import assert_platform
from verl_ext.run_folder import end_processes, process_trees
from verl_ext.verl_config import resolved
from verl_ext.vllm_servers import local_processes
from verl_ext.worker_group import ANSWER_S, RAY_KILLS_S, ClusterError, check_rank_files, gpu_pool, release
from verl_ext.workers import AgentTrainingWorker, actor_worker_config


def response_loss(
    model_output: Mapping[str, Tensor], data: TensorDict, dp_group: Any = None
) -> tuple[Tensor, dict[str, Metric]]:
    """Mean negative log-likelihood of the response tokens of the global batch, in nats; this micro-batch's share of it.

    The denominator counts the tokens of all micro-batches and ranks. FSDP averages gradients over the ranks, hence the factor.
    """
    mask = data.select("response_mask").to_padded_tensor()["response_mask"].to(torch.bool)
    log_prob = no_padding_2_padding(model_output["log_probs"], data).float()
    loss = -torch.where(mask, log_prob, 0.0).sum() / data["batch_num_tokens"]
    return loss * data["dp_size"], {"loss": Metric(AggregationType.SUM, loss.detach())}


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimizer step: its loss in nats per response token, gradient norm before clipping, and learning rate.

    A step whose norm is not finite was skipped.
    """

    loss: float
    grad_norm: float
    learning_rate: float


class SupervisedWorker(AgentTrainingWorker):
    """One rank: ``train_step`` and ``evaluate`` are called on all ranks together, each with its rows of the batch.

    Args:
        config: see ``actor_worker_config``.
        device: the platform this process must run on; checked first.
    """

    def __init__(self, config: TrainingWorkerConfig, device: str) -> None:
        assert_platform(device)
        super().__init__(config)

    @register(dispatch_mode=Dispatch["ONE_TO_ALL"])
    def init_model(self) -> int:
        """Build model and optimizer; returns which share of a batch this process works on."""
        self.reset()
        return self.engine.get_data_parallel_rank()

    @register(dispatch_mode=Dispatch["DP_COMPUTE"])
    def train_step(self, rows: list[Sample]) -> StepReport:
        """One optimizer step on one global batch."""
        learning_rate = self.learning_rate()
        with self.engine.train_mode():
            self.engine.optimizer_zero_grad()
            loss = self._loss(rows, forward_only=False)
            norm = float(self.engine.optimizer_step())
            self.engine.lr_scheduler_step()
        return StepReport(loss, norm, learning_rate)

    @register(dispatch_mode=Dispatch["DP_COMPUTE"])
    def evaluate(self, rows: list[Sample]) -> float:
        """The loss of all rows of all ranks, without gradients."""
        with self.engine.eval_mode():
            return self._loss(rows, forward_only=True)

    def _loss(self, rows: list[Sample], *, forward_only: bool) -> float:
        batch = self._batch(rows, 1.0, infer=forward_only)
        tu.assign_non_tensor(batch, calculate_entropy=False)
        output = self.engine.forward_backward_batch(batch, response_loss, forward_only=forward_only)
        return self._reduce(output["metrics"])["loss"]


class SupervisedCluster:
    """A model that is fine-tuned by workers on a running Ray cluster, ``trainer.n_gpus_per_node * trainer.nnodes`` of them.

    Args:
        config: veRL's ``ppo_trainer`` configuration, of which model, actor and trainer are used.
    """

    def __init__(self, config: DictConfig) -> None:
        self._trainer = config.trainer
        actor = config.actor_rollout_ref.actor
        self._budget = (
            actor.ppo_max_token_len_per_gpu * actor.ulysses_sequence_parallel_size if actor.use_dynamic_bsz else None
        )
        self._config = resolved(config)
        self._pool: RayResourcePool | None = None
        # A worker group gets the worker's methods at run time, hence Any.
        self._workers: Any = None
        self._dp_ranks: list[int] = []
        self._processes: list[psutil.Process] = []

    def start(self) -> None:
        """Start the workers and load the model.

        Raises:
            ClusterError: Ray has too few (logical) GPUs.
            PlatformError: this process or a worker is not on ``trainer.device``.
        """
        trainer = self._trainer
        assert_platform(trainer.device)
        needed, present = trainer.n_gpus_per_node * trainer.nnodes, int(ray.cluster_resources().get("GPU", 0))
        if present < needed:
            raise ClusterError(
                f"trainer.n_gpus_per_node * trainer.nnodes = {needed} but Ray has {present} GPUs: lower them, or use hardware="
            )
        self._pool = gpu_pool(trainer)
        worker = RayClassWithInitArgs(
            cls=ray.remote(SupervisedWorker), config=actor_worker_config(self._config), device=trainer.device
        )
        self._workers = RayWorkerGroup(self._pool, worker, device_name=trainer.device)
        self._processes = local_processes(list(self._workers.workers), ANSWER_S)
        self._dp_ranks = self._workers.init_model()

    def shutdown(self) -> None:
        """End the workers; Ray itself goes on. Safe to call twice."""
        processes = process_trees(self._processes)
        if self._workers is not None and ray.is_initialized():
            for worker in self._workers.workers:
                ray.kill(worker)
            release(self._pool)
        end_processes(processes, RAY_KILLS_S)
        self._processes, self._workers, self._pool = [], None, None

    def train_step(self, samples: Sequence[Sample]) -> StepReport:
        """One optimizer step on a global batch; the order of the samples and the number of ranks do not matter to it.

        Raises:
            ValueError: a sample that no worker can handle.
        """
        return self._started().train_step(self._shares(samples))[0]

    def evaluate(self, samples: Sequence[Sample]) -> float:
        """Mean loss of the response tokens of all samples, in nats."""
        return self._started().evaluate(self._shares(samples))[0]

    def save(self, directory: Path) -> None:
        """Write model, optimizer, scheduler and every rank's random state; ``directory`` is seen by all nodes."""
        self._started().save_checkpoint(str(directory))

    def load(self, directory: Path) -> None:
        """Read what ``save`` wrote at the same world size.

        Raises:
            ClusterError: a rank's file is missing.
        """
        workers = self._started()
        check_rank_files(directory, workers.world_size)
        workers.load_checkpoint(str(directory))

    def _shares(self, samples: Sequence[Sample]) -> list[list[Sample]]:
        """Every worker's rows; those of a sequence-parallel group share one."""
        check_samples(samples, "sample", self._budget)
        lengths = [sample.length for sample in samples]
        plan = plan_mini_batches(lengths, len(lengths), max(self._dp_ranks) + 1, seed=0)[0]
        shares = rows_per_rank(samples, plan)
        return [shares[rank] for rank in self._dp_ranks]

    def _started(self) -> Any:
        if self._workers is None:
            raise ClusterError("the workers are not running: call start() first")
        return self._workers
