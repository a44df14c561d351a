"""What every cluster of training workers needs: its devices, its checkpoint's files, and its end."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig
from ray.util.placement_group import remove_placement_group
from verl.single_controller.ray import RayResourcePool

ANSWER_S = 30.0
"""How long a process may take to say which it is."""

RAY_KILLS_S = 3.0
"""Ray reports a process that ends before Ray has ended it as a crash."""


class ClusterError(RuntimeError):
    """The cluster cannot do what was asked."""


def gpu_pool(trainer: DictConfig) -> RayResourcePool:
    """A pool of ``n_gpus_per_node`` (logical) GPUs on each of ``nnodes`` nodes; veRL's ``trainer`` section."""
    return RayResourcePool([trainer.n_gpus_per_node] * trainer.nnodes, use_gpu=True, max_colocate_count=1)


def release(pool: RayResourcePool | None) -> None:
    """Give a pool's GPUs back to Ray."""
    if pool is not None and pool.pgs is not None:
        for group in pool.pgs:
            remove_placement_group(group)


def check_rank_files(directory: Path, world: int) -> None:
    """Whether a checkpoint holds the model of every one of ``world`` ranks.

    Raises:
        ClusterError: a rank's file is missing.
    """
    for rank in range(world):
        path = directory / f"model_world_size_{world}_rank_{rank}.pt"
        if not path.is_file():
            raise ClusterError(f"{path} is missing: the checkpoint is incomplete or was made at another world size")
