"""The run's Ray cluster: its own, on loopback, stopped whatever happens; or one that is there already, which is only joined."""

from __future__ import annotations

import logging
import os
import signal
import socket
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
from verl_ext.run_folder import FOLDER_VARIABLE, clear_run_folder, end_processes, processes_of

_START_DEADLINE_S = 180
_JOIN_DEADLINE_S = 60
_NODE_DEADLINE_S = 75  # of one attempt to start; a second one fits into the start's deadline
_LOOK_FOR = "look for a full /tmp or /dev/shm, too few processors, or leftovers of another Ray (ray stop)"
_NOT_STARTED = f"Ray did not start within {_START_DEADLINE_S} s: {_LOOK_FOR}"
_OBJECT_STORE_BYTES = 512 * 2**20

Handler = Callable[[int, Any], object]


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def prepare_environment(device: str) -> None:
    """Set what Ray, veRL and the tokenizers read from the environment. Call before importing any of them."""
    for name, value in _environment(device).items():
        os.environ.setdefault(name, value)


def _environment(device: str) -> dict[str, str]:
    defaults = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # makes Ray and veRL's servers bind to loopback
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_raylet_start_wait_time_s": str(_NODE_DEADLINE_S),  # Ray's own 30 s are too short on a busy machine
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",  # models are folders; nothing is looked up
    }
    if device == "cpu":
        defaults |= {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": str(min(2, os.cpu_count() or 1))}
    return defaults


@contextmanager
def ray_cluster(config: DictConfig, logs: Path, on_signal: Handler = _interrupt) -> Iterator[None]:
    """Ray for the duration of the block: a local cluster apart from any other, or the one at ``hardware.ray_address``.

    When the block fails, the logs of a local cluster's processes are kept in ``logs``. ``on_signal`` handles SIGTERM and
    SIGINT, also in the place of Ray's own handler.

    Raises:
        UserError: Ray did not start, or the cluster did not answer, within the deadline.
    """
    address = str(config.hardware.ray_address)
    if address == "local":
        cluster = _own_cluster(config, logs, on_signal)
    else:
        cluster = _joined_cluster(address, str(config.trainer.device), on_signal)
    with signals(on_signal), cluster:  # from the start: importing Ray takes seconds
        yield


@contextmanager
def _joined_cluster(address: str, device: str, on_signal: Handler) -> Iterator[None]:
    import ray

    variables = {name: os.environ[name] for name in _environment(device)}  # its processes were not started from here
    try:
        with (
            deadline(_JOIN_DEADLINE_S, UserError(f"no Ray cluster answered at {address} in {_JOIN_DEADLINE_S} s")),
            _instead_of_rays(on_signal),
        ):
            _knock(address)
            ray.init(
                address=address,
                logging_level=logging.ERROR,
                log_to_driver=False,
                runtime_env={"env_vars": variables},
            )
        yield
    except ConnectionError as error:
        reason = str(error).splitlines()[0].lower()
        raise UserError(
            f"no Ray cluster at RSIPO_RAY_ADDRESS={address}: {reason}; start it with `ray start`"
        ) from error
    finally:
        with signals(signal.SIG_IGN):
            ray.shutdown()  # leaves the cluster; the trainer has ended its actors


def _knock(address: str) -> None:
    """Raise ConnectionError where nothing listens at HOST:PORT; Ray's own look for it takes forty seconds."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        return  # "auto": Ray knows where
    try:
        socket.create_connection((host, int(port)), timeout=_JOIN_DEADLINE_S).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(getattr(error, "strerror", None) or str(error)) from error


@contextmanager
def _own_cluster(config: DictConfig, logs: Path, on_signal: Handler) -> Iterator[None]:
    import ray

    with scratch_folder("rsipo-ray-", clear=clear_run_folder) as temporary:
        os.environ[FOLDER_VARIABLE] = str(temporary)  # for the processes that Ray starts
        try:
            with deadline(_START_DEADLINE_S, UserError(_NOT_STARTED)), _instead_of_rays(on_signal):
                _start(temporary, _arguments(config, temporary))
            yield
        except BaseException:
            keep_worker_logs(temporary, logs)
            raise
        finally:
            with signals(signal.SIG_IGN):  # a second Ctrl-C must not leave processes behind
                ray.shutdown()
            del os.environ[FOLDER_VARIABLE]


def _start(temporary: Path, arguments: dict[str, Any]) -> None:
    """Start Ray, a second time where it gave up on itself because its parts were too slow or one of them died."""
    import ray

    for last in (False, True):
        try:
            ray.init(address="local", **arguments)
            return
        except Exception as error:
            ray.shutdown()
            end_processes(processes_of(temporary))
            if last:
                raise UserError(f"Ray did not start: {str(error).splitlines()[0][:200]}; {_LOOK_FOR}") from error


def _arguments(config: DictConfig, temporary: Path) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "include_dashboard": False,
        "logging_level": logging.ERROR,
        "log_to_driver": False,
        "_temp_dir": str(temporary),
        "runtime_env": {"worker_process_setup_hook": "verl_ext.stacks.register"},
    }
    if config.trainer.device == "cpu":
        # Logical resources: the processes take turns on the cores there are.
        arguments |= {
            "num_cpus": 16 + 4 * int(config.trainer.n_gpus_per_node),
            "num_gpus": int(config.trainer.n_gpus_per_node),
        }
        arguments |= {"object_store_memory": _OBJECT_STORE_BYTES}
    return arguments


@contextmanager
def _instead_of_rays(handler: Handler) -> Iterator[None]:
    """Ray, when it starts, sets a handler of SIGTERM that exits; in the block and after it, ``handler`` gets the signal."""
    try:
        yield
    except SystemExit as end:
        if end.code == signal.SIGTERM:
            handler(signal.SIGTERM, None)
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def signals(handler: Handler | signal.Handlers) -> Iterator[None]:
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
