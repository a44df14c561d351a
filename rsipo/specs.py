"""The benchmarks by name, and their specifications built from the configuration."""

from __future__ import annotations

from typing import Any

from agent_system.environments.base import EnvironmentSpec
from rsipo.run_settings import EnvSection

#: Benchmarks that can be trained on. ``search`` joins when its environment does.
BENCHMARKS = ("alfworld",)

_NOT_THE_SPECS = {"name", "train_split", "task_types"}


def make_spec(env: EnvSection) -> EnvironmentSpec:
    """The specification of the configured benchmark."""
    values: dict[str, Any] = {key: value for key, value in env.model_dump().items() if key not in _NOT_THE_SPECS}
    from agent_system.environments.alfworld.spec import AlfworldSpec

    return AlfworldSpec(**values)
