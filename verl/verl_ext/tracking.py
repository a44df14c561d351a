"""veRL's experiment trackers (wandb, tensorboard, trackio, swanlab, …), by configuration."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

from omegaconf import DictConfig, OmegaConf


class Trackers:
    """Log scalar metrics to the named backends; with none named, do nothing and import nothing.

    Args:
        names: veRL backend names.
        project, experiment: as the backends show them.
        config: the resolved configuration, stored with the run.
    """

    def __init__(self, names: Sequence[str], project: str, experiment: str, config: DictConfig) -> None:
        self._tracking: Any = None
        if names:
            from verl.utils.tracking import Tracking

            plain = OmegaConf.to_container(config, resolve=True)
            self._tracking = Tracking(project, experiment, default_backend=list(names), config=plain)

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        if self._tracking is not None:
            scalars = {name: float(value) for name, value in metrics.items() if isinstance(value, Real)}
            self._tracking.log(data=scalars, step=step)

    def close(self) -> None:
        """Flush and finish the backends (veRL does so when its object goes)."""
        self._tracking = None
