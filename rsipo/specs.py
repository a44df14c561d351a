"""The benchmarks by name, their specifications built from the configuration, and where their episodes are played."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agent_system.environments.base import EnvironmentSpec
from rsipo.problems import UserError
from rsipo.run_settings import ENVIRONMENTS, EnvSection, SearchSection, WorkersSection

if TYPE_CHECKING:
    from agent_system.rollout.program import SessionPool

#: Benchmarks that can be trained on.
BENCHMARKS = tuple(ENVIRONMENTS)

_OF_THE_RUN = {"name", "train_split", "task_types"}


def make_spec(env: EnvSection) -> EnvironmentSpec:
    """The specification of the configured benchmark.

    Raises:
        UserError: settings that contradict each other.
    """
    try:
        return _spec(env)
    except ValueError as error:
        raise UserError(f"env: {error}") from error


def _spec(env: EnvSection) -> EnvironmentSpec:
    values: dict[str, Any] = {key: value for key, value in env.model_dump().items() if key not in _OF_THE_RUN}
    if isinstance(env, SearchSection):
        from agent_system.environments.search.spec import SearchSpec

        del values["data_root"]
        return SearchSpec(**values | {"retriever_urls": tuple(env.retriever_urls)})
    from agent_system.environments.alfworld.spec import AlfworldSpec

    return AlfworldSpec(**values)


def session_opener(spec: EnvironmentSpec, workers: WorkersSection) -> Callable[[int], SessionPool]:
    """What a rollout worker calls with its number to open its environment slots.

    A benchmark that computes gets processes of its own, one that only waits for a server plays in the worker's process.
    """
    from agent_system.environments.search.spec import SearchSpec

    def open_sessions(number: int) -> SessionPool:
        if isinstance(spec, SearchSpec):
            return spec.open_sessions(workers.env_hosts * workers.slots_per_host)
        from agent_system.environments.client import EnvPool

        return EnvPool(spec, num_hosts=workers.env_hosts, slots_per_host=workers.slots_per_host)

    return open_sessions
