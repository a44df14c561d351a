"""veRL workers whose one optimizer step can cover a PPO mini-batch and an auxiliary loss.

The same classes run on GPUs and on the CPU platform; only the process group is created differently.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_name
from verl.utils.distributed import initialize_global_process_group_ray
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.padding import response_from_nested

import verl_ext.engine
import verl_ext.rollout_cpu  # noqa: F401  registers the CPU rollout backend, here and in the driver
from verl_ext.batch import RankUpdate, Sample, pack
from verl_ext.losses import AuxiliaryLoss, PolicyLoss, TokenTerm
from verl_ext.platform_cpu import assert_platform
from verl_ext.vllm_transfer import all_or_none, answer_within, weight_socket


def actor_worker_config(config: DictConfig) -> TrainingWorkerConfig:
    """What a worker that trains the actor of a resolved ``ppo_trainer`` configuration, and nothing else, is built from."""
    model_config = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    engine = actor.engine
    engine.use_dynamic_bsz = actor.use_dynamic_bsz
    engine.max_token_len_per_gpu = engine.infer_max_token_len_per_gpu = actor.ppo_max_token_len_per_gpu
    engine.micro_batch_size_per_gpu = engine.infer_micro_batch_size_per_gpu = actor.ppo_micro_batch_size_per_gpu
    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=model_config,
        engine_config=engine,
        optimizer_config=actor.optim,
        checkpoint_config=actor.checkpoint,
    )


@dataclass(slots=True)
class UpdateReport:
    """What one update did, the same on every rank.

    Attributes:
        mini_batches: metrics of each optimizer step, denominators global.
        grad_norms: gradient norm of each optimizer step before clipping; a step whose norm is not finite is skipped.
        learning_rate: the one these steps used.
        applied: every optimizer step was taken.
    """

    mini_batches: list[dict[str, float]]
    grad_norms: list[float]
    learning_rate: float

    @property
    def applied(self) -> bool:
        return all(math.isfinite(norm) for norm in self.grad_norms)


class AgentTrainingWorker(TrainingWorker):
    """A veRL training worker for turn samples: ``update_policy`` trains, ``log_probs`` scores."""

    def __init__(self, config: TrainingWorkerConfig) -> None:
        if get_device_name() == "cpu":
            # veRL would ask for "cpu:gloo,cpu:gloo", which torch refuses; it keeps a group that exists.
            initialize_global_process_group_ray(backend="gloo")
        super().__init__(config)
        self.auxiliary_loss: AuxiliaryLoss | None = None

    def learning_rate(self) -> float:
        """Of the next optimizer step."""
        engine: Any = self.engine
        return float(engine.lr_scheduler.get_last_lr()[0])

    def update_policy(self, update: RankUpdate) -> UpdateReport:
        """One pass over the PPO mini-batches; the auxiliary gradient joins the last one. All ranks call it together."""
        loss = self.loss_fn
        if not isinstance(loss, PolicyLoss):
            raise TypeError(f"update_policy needs a PolicyLoss, set_loss_fn gave {type(loss).__name__}")
        if update.auxiliary and self.auxiliary_loss is None:
            raise ValueError("there are auxiliary samples but no auxiliary loss: give PolicyCluster an auxiliary_loss")
        report = UpdateReport([], [], self.learning_rate())
        with self.engine.train_mode():
            for index, rows in enumerate(update.mini_batches):
                batch = self._batch(rows, update.temperature)
                tu.assign_non_tensor(batch, calculate_entropy=loss.needs_entropy, global_batch_size=update.sizes[index])
                self.engine.optimizer_zero_grad()
                metrics = self.engine.forward_backward_batch(batch, loss, forward_only=False)["metrics"]
                if update.auxiliary and index == len(update.mini_batches) - 1:
                    extra = self._batch(update.auxiliary, update.temperature)
                    output = self.engine.forward_backward_batch(extra, self.auxiliary_loss, forward_only=False)
                    metrics |= output["metrics"]
                report.grad_norms.append(float(self.engine.optimizer_step()))
                report.mini_batches.append(self._reduce(metrics))
            self.engine.lr_scheduler_step()
        return report

    def log_probs(self, rows: list[Sample], temperature: float) -> list[np.ndarray] | None:
        """Log-probabilities of the response tokens, float32 [R] per real row, in evaluation mode and without gradients.

        None on ranks whose outputs another rank holds (sequence parallelism).
        """
        batch = self._batch(rows, temperature, infer=True)
        tu.assign_non_tensor(batch, compute_loss=False, calculate_entropy=False)
        output = self.infer_batch(batch)
        if output is None:
            return None
        scores = response_from_nested(output["log_probs"], batch["response_mask"].cpu()).unbind()
        # The batch may be longer than the rows, by padding at its end.
        return [score.float().numpy() for score, row in zip(scores, rows, strict=False) if not row.padding]

    def _batch(self, rows: list[Sample], temperature: float, *, infer: bool = False) -> TensorDict:
        """Rows with the engine's settings; filled up with padding rows where micro-batches have a fixed size."""
        config = self.engine_config
        prefix = "infer_" if infer else ""
        settings: dict[str, Any] = {
            "temperature": temperature,
            "use_remove_padding": config.use_remove_padding,
            "use_fused_kernels": config.use_fused_kernels,
            "use_dynamic_bsz": config.use_dynamic_bsz,
        }
        if config.use_dynamic_bsz:
            settings["max_token_len_per_gpu"] = getattr(config, f"{prefix}max_token_len_per_gpu")
        else:
            size = getattr(config, f"{prefix}micro_batch_size_per_gpu")
            settings["micro_batch_size_per_gpu"] = size
            rows = rows + [rows[0].as_padding()] * (-len(rows) % size)
        return tu.assign_non_tensor(pack(rows), **settings)

    def _reduce(self, metrics: Mapping[str, Metric]) -> dict[str, float]:
        """Metrics over all micro-batches and ranks; a rank without real rows may lack some of them."""
        group = self.engine.get_data_parallel_group()
        local = {name: (metric.aggregation, float(metric.aggregate())) for name, metric in metrics.items()}
        per_rank: list[dict[str, tuple[AggregationType, float]]] = [{}] * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(per_rank, local, group=group)
        reduced: dict[str, float] = {}
        for name in sorted(set().union(*per_rank)):
            found = [values[name] for values in per_rank if name in values]
            combine = max if found[0][0] is AggregationType.MAX else sum
            reduced[name] = float(combine(value for _, value in found))
        return reduced


class AgentActorRolloutRefWorker(ActorRolloutRefWorker):
    """veRL's hybrid worker (policy, rollout half, optional reference) with the calls ``PolicyCluster`` makes.

    Args:
        config: ``actor_rollout_ref`` of veRL's configuration.
        role: ``actor_rollout`` or ``actor_rollout_ref``.
        device: the platform this process must run on; checked first.
        token_terms: extra terms of the policy loss.
        auxiliary_loss: the loss of the auxiliary samples, if any.
        answer_deadline_s: how long a vLLM worker may take to answer while it gets weights, in seconds.

    Raises:
        PlatformError: veRL fell back to another platform.
    """

    actor_worker_cls = AgentTrainingWorker
    ref_worker_cls = AgentTrainingWorker

    def __init__(
        self,
        config: Any,
        role: str,
        device: str,
        token_terms: Sequence[TokenTerm] = (),
        auxiliary_loss: AuxiliaryLoss | None = None,
        answer_deadline_s: float = 300.0,
        **kwargs: Any,
    ) -> None:
        assert_platform(device)
        super().__init__(config, role, **kwargs)
        self._answer_deadline_s = answer_deadline_s
        self._token_terms = tuple(token_terms)
        self._auxiliary_loss = auxiliary_loss

    @register(dispatch_mode=Dispatch["ONE_TO_ALL"])
    def init_model(self) -> None:
        """Build the models, then put our loss in the place of veRL's."""
        super().init_model()
        actor = self._worker("actor")
        actor.set_loss_fn(PolicyLoss(self.loss_fn.keywords["config"], self._token_terms))
        actor.auxiliary_loss = self._auxiliary_loss
        if self.config.rollout.name == "vllm":
            adapter: Any = self.rollout  # veRL's adapter for vLLM
            adapter.zmq_handle = weight_socket(adapter.zmq_handle)
            adapter.update_weights = all_or_none(adapter.update_weights)

    @register(dispatch_mode=Dispatch["ONE_TO_ALL"], blocking=False)
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> Any:
        """Send the weights to this rank's server, as veRL does, but not for ever.

        Raises:
            WeightUpdateError: the server did not answer.
        """
        with answer_within(self._answer_deadline_s) if self.config.rollout.name == "vllm" else nullcontext():
            return await super().update_weights(global_steps=global_steps, mode=mode)

    @register(dispatch_mode=Dispatch["ONE_TO_ALL"])
    def data_parallel_rank(self) -> int:
        """Which share of a batch this process works on."""
        return self._worker("actor").engine.get_data_parallel_rank()

    @register(dispatch_mode=Dispatch["DP_COMPUTE"])
    def update_policy(self, update: RankUpdate) -> UpdateReport:
        """See :meth:`AgentTrainingWorker.update_policy`."""
        return self._worker("actor").update_policy(update)

    @register(dispatch_mode=Dispatch["DP_COMPUTE"])
    def score(self, rows: list[Sample], temperature: float, role: str) -> list[np.ndarray] | None:
        """See :meth:`AgentTrainingWorker.log_probs`; ``role`` is ``actor`` or ``reference``."""
        return self._worker(role).log_probs(rows, temperature)

    @register(dispatch_mode=Dispatch["ONE_TO_ALL"])
    def export_state(self) -> dict[str, torch.Tensor]:
        """Full weights on rank 0 (all ranks gather together), nothing elsewhere."""
        weights, _ = self._worker("actor").engine.get_per_tensor_param()
        full = ((name, tensor.detach().cpu().clone()) for name, tensor in weights)
        if self.rank == 0:
            return dict(full)
        for _ in full:
            pass
        return {}

    def _worker(self, role: str) -> AgentTrainingWorker:
        worker = self.ref if role == "reference" else self.actor
        if not isinstance(worker, AgentTrainingWorker):
            raise RuntimeError(f"this process has no {role} model: call init_model first, with the right role")
        return worker
