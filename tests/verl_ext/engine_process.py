"""Runs update scenarios on in-process training workers, without Ray; started by the contract tests, once per rank.

    python engine_process.py REQUEST.pkl RESULT.pkl        (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT in the environment)

The request maps a name to a Scenario as a dict; the result, written by rank 0, maps it to what happened.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import torch
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig, TrainingWorkerConfig

from verl_ext.batch import Sample, plan_mini_batches, rows_per_rank
from verl_ext.verl_config import load_verl_config
from verl_ext.losses import AuxiliaryLoss, PolicyLoss, TokenTerm
from verl_ext.workers import AgentTrainingWorker, RankUpdate

BETA = 5.0


def opsd(log_prob: torch.Tensor, mask: torch.Tensor, fields: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    gap = fields["teacher_log_probs"] - log_prob
    gate = torch.sigmoid(BETA * gap.detach())
    return gate * gap * fields["trust"].unsqueeze(-1), {"gate": gate, "gap_max": gap}


def skill(log_prob: torch.Tensor, mask: torch.Tensor, fields: Any) -> torch.Tensor:
    likelihood = (log_prob * fields["mask"]).sum(-1) / fields["mask"].sum(-1)
    return -fields["reward"] * likelihood / fields["num_tasks"]


def settings(model: str, overrides: list[str]) -> list[str]:
    """veRL overrides of the CPU contract: fp32, FSDP2, KL and entropy on."""
    common = []
    for role in ("actor", "ref"):
        common += [
            f"actor_rollout_ref.{role}.strategy=fsdp2",
            f"actor_rollout_ref.{role}.fsdp_config.strategy=fsdp2",
            f"actor_rollout_ref.{role}.use_torch_compile=False",
            f"actor_rollout_ref.{role}.fsdp_config.use_torch_compile=False",
            f"+actor_rollout_ref.{role}.fsdp_config.mixed_precision.param_dtype=fp32",
        ]
    return [
        *common,
        f"actor_rollout_ref.model.path={model}",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.model.use_remove_padding=True",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=64",
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=64",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.kl_loss_coef=0.05",
        "actor_rollout_ref.actor.entropy_coeff=0.01",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "trainer.device=cpu",
        *overrides,
    ]


def make_worker(model: str, overrides: list[str], opsd_coefficient: float) -> AgentTrainingWorker:
    config = load_verl_config(settings(model, overrides))
    OmegaConf.resolve(config)
    model_config: HFModelConfig = omega_conf_to_dataclass(config.actor_rollout_ref.model)
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
    terms = [TokenTerm("opsd", opsd, opsd_coefficient, ("teacher_log_probs", "trust"))]
    worker.set_loss_fn(PolicyLoss(actor, terms))
    worker.auxiliary_loss = AuxiliaryLoss("skill", skill, ("mask", "reward", "num_tasks"))
    return worker


def share(samples: list[Sample], auxiliary: list[Sample], size: int, seed: int, rank: int, world: int) -> RankUpdate:
    """This rank's part of an update, as PolicyCluster plans it."""
    plan = plan_mini_batches([sample.length for sample in samples], size, world, seed)
    update = RankUpdate(
        [rows_per_rank(samples, part)[rank] for part in plan],
        [sum(index >= 0 for row in part for index in row) for part in plan],
    )
    if auxiliary:
        part = plan_mini_batches([sample.length for sample in auxiliary], len(auxiliary), world, seed)[0]
        update.auxiliary = rows_per_rank(auxiliary, part)[rank]
    return update


def state(worker: AgentTrainingWorker) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in worker.engine.get_per_tensor_param()[0]}


def run(scenario: dict[str, Any], folder: Path) -> dict[str, Any]:
    worker = make_worker(scenario["model"], scenario.get("overrides", []), scenario.get("opsd", 0.1))
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    reports, saved_at = [], scenario.get("save_after")
    if load := scenario.get("load"):
        worker.load_checkpoint(str(folder / load))
    for index, (samples, auxiliary) in enumerate(scenario["updates"]):
        update = share(samples, auxiliary, scenario["mini_batch_size"], scenario.get("seed", 0), rank, world)
        report = worker.update_policy(update)
        reports.append({"metrics": report.mini_batches, "norms": report.grad_norms, "applied": report.applied})
        if saved_at == index + 1:
            worker.save_checkpoint(str(folder / scenario["name"]))
    scores = None
    if pairs := scenario.get("score"):
        scores = worker.log_probs([Sample(prompt, response) for prompt, response in pairs], 1.0)
    return {"reports": reports, "state": state(worker), "scores": scores}


def main() -> None:
    request, result = Path(sys.argv[1]), Path(sys.argv[2])
    scenarios = pickle.loads(request.read_bytes())
    results = {name: run({"name": name, **scenario}, result.parent) for name, scenario in scenarios.items()}
    if torch.distributed.get_rank() == 0:
        result.write_bytes(pickle.dumps(results))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
