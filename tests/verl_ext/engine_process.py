"""Runs update scenarios on in-process training workers, without Ray; started by the contract tests, once per rank.

    python engine_process.py REQUEST.pkl RESULT.pkl

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are in the environment. The request maps the name of a scenario to its
settings (see ``run``); the result, written by rank 0, maps it to what happened.
"""

from __future__ import annotations

import functools
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from verl_ext.batch import Sample, plan_update
from verl_ext.local_worker import local_worker
from verl_ext.losses import AuxiliaryLoss, TokenTerm
from verl_ext.verl_config import load_verl_config
from verl_ext.workers import AgentTrainingWorker

BETA = 5.0


def opsd(log_prob: torch.Tensor, mask: torch.Tensor, fields: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    gap = fields["teacher_log_probs"] - log_prob
    gate = torch.sigmoid(BETA * gap.detach())
    return gate * gap * fields["trust"].unsqueeze(-1), {"gate": gate, "gap_max": gap}


def skill(log_prob: torch.Tensor, mask: torch.Tensor, fields: Any) -> torch.Tensor:
    likelihood = (log_prob * fields["mask"]).sum(-1) / fields["mask"].sum(-1)
    return -fields["reward"] * likelihood / fields["num_tasks"]


@functools.cache
def configuration(overrides: tuple[str, ...]) -> DictConfig:
    return load_verl_config(overrides)


def make_worker(overrides: list[str], terms: list[TokenTerm]) -> AgentTrainingWorker:
    worker = local_worker(configuration(tuple(overrides)), terms)
    worker.auxiliary_loss = AuxiliaryLoss("skill", skill, ("mask", "reward", "num_tasks"))
    return worker


def state(worker: AgentTrainingWorker) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in worker.engine.get_per_tensor_param()[0]}


def run(name: str, scenario: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One fresh worker through some updates.

    Scenario: ``overrides`` of veRL's configuration, ``opsd`` coefficient (None = no term), ``updates`` [(samples,
    auxiliary samples)], ``mini_batch_size``, and optionally ``load`` (the scenario whose checkpoint to start from),
    ``save_after`` (the number of updates after which to write one) and ``score`` [(prompt, response)].
    """
    coefficient = scenario["opsd"]
    terms = [] if coefficient is None else [TokenTerm("opsd", opsd, coefficient, ("teacher_log_probs", "trust"))]
    worker = make_worker(scenario["overrides"], terms)
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    scores = None
    if pairs := scenario.get("score"):
        scores = worker.log_probs([Sample(prompt, response) for prompt, response in pairs], 1.0)
    if load := scenario.get("load"):
        worker.load_checkpoint(str(folder / load))
    reports = []
    for samples, auxiliary in scenario["updates"]:
        size, seed = scenario["mini_batch_size"], scenario["seed"]
        shares = plan_update(samples, auxiliary, mini_batch_size=size, dp=world, seed=seed)
        report = worker.update_policy(shares[rank])
        reports.append({"metrics": report.mini_batches, "norms": report.grad_norms, "applied": report.applied})
        if scenario.get("save_after") == len(reports):
            worker.save_checkpoint(str(folder / name))
    return {"reports": reports, "state": state(worker), "scores": scores}


def main() -> None:
    request, result = Path(sys.argv[1]), Path(sys.argv[2])
    scenarios = pickle.loads(request.read_bytes())
    results = {name: run(name, scenario, result.parent) for name, scenario in scenarios.items()}
    if torch.distributed.get_rank() == 0:
        result.write_bytes(pickle.dumps(results))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
