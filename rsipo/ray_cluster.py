"""This run's own Ray cluster: started with a deadline, on loopback, stopped whatever happens."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rsipo.problems import UserError
from rsipo.run_console import keep_worker_logs
from rsipo.scratch import scratch_folder
from verl_ext.phases import deadline
from verl_ext.run_folder import FOLDER_VARIABLE, clear_run_folder

_START_DEADLINE_S = 180
_NOT_STARTED = (
    f"Ray did not start within {_START_DEADLINE_S} s: "
    "look for a full /tmp or /dev/shm, or leftovers of another Ray (ray stop)"
)
_OBJECT_STORE_BYTES = 512 * 2**20


def prepare_environment(device: str) -> None:
    """Set what Ray, veRL and the tokenizers read from the environment. Call before importing any of them."""
    defaults = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # makes Ray and veRL's servers bind to loopback
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",  # models are folders; nothing is looked up
    }
    if device == "cpu":
        defaults |= {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": str(min(2, os.cpu_count() or 1))}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


@contextmanager
def ray_cluster(config: DictConfig, logs: Path) -> Iterator[None]:
    """A local Ray cluster for the duration of the block, apart from any other on this machine.

    When the block fails, the logs of Ray's processes are kept in ``logs``.

    Raises:
        UserError: Ray did not start within its deadline.
    """
    import ray

    with scratch_folder("rsipo-ray-", clear=clear_run_folder) as temporary, _signals(_interrupt):
        os.environ[FOLDER_VARIABLE] = str(temporary)  # for the processes that Ray starts
        try:
            with deadline(_START_DEADLINE_S, UserError(_NOT_STARTED)):
                ray.init(address="local", **_arguments(config, temporary))
            with _signals(_interrupt):  # again: Ray has set a handler of its own, which aborts
                yield
        except BaseException:
            keep_worker_logs(temporary, logs)
            raise
        finally:
            with _signals(signal.SIG_IGN):  # a second Ctrl-C must not leave processes behind
                ray.shutdown()
            del os.environ[FOLDER_VARIABLE]


def _arguments(config: DictConfig, temporary: Path) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "include_dashboard": False,
        "logging_level": "error",
        "log_to_driver": False,
        "_temp_dir": str(temporary),
    }
    if config.trainer.device == "cpu":
        # Logical resources: the processes take turns on the cores there are.
        arguments |= {
            "num_cpus": 16 + 4 * int(config.trainer.n_gpus_per_node),
            "num_gpus": int(config.trainer.n_gpus_per_node),
        }
        arguments |= {"object_store_memory": _OBJECT_STORE_BYTES}
    return arguments


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _signals(handler: Callable[..., None] | signal.Handlers) -> Iterator[None]:
    """Handle SIGTERM and Ctrl-C so within the block, also where the shell had them ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, earlier in previous.items():
            signal.signal(number, earlier)
