"""A CPU platform for veRL: gloo collectives, plain host memory, Ray's GPUs as logical slots.

veRL loads this module through the entry point group ``verl.plugins``. Registering the class changes nothing by itself:
it is chosen only where ``VERL_PLATFORM=cpu`` is set, so a GPU node without its driver tools never becomes a CPU node.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

PLATFORM_VARIABLE = "VERL_PLATFORM"

#: What vLLM's CPU build reads in a server and the processes below it. What is set in the driver wins.
_VLLM_ON_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB a server; without it vLLM takes a large part of the machine
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every server is bound to the same cores and leaves one of them idle
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "OMP_NUM_THREADS": str(min(2, os.cpu_count() or 1)),
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin starve the other processes
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # a helper would be compiled at the first request, with a C++ compiler
}


class PlatformError(RuntimeError):
    """veRL runs on another platform than the configuration asks for."""


def _device_module() -> ModuleType:
    """``torch.cpu`` plus the accelerator calls veRL makes and a CPU has no need of."""
    module = ModuleType("verl_ext.torch_cpu")
    module.__dict__.update({name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("__")})

    def nothing(*_args: Any, **_kwargs: Any) -> None:
        return None

    def zero(*_args: Any, **_kwargs: Any) -> int:
        return 0

    module.__dict__.update(
        dict.fromkeys(
            ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "synchronize", "set_device", "init"), nothing
        ),
        manual_seed=torch.manual_seed,
        manual_seed_all=torch.manual_seed,
        get_rng_state=lambda *_: torch.get_rng_state(),
        set_rng_state=lambda state, *_: torch.set_rng_state(state),
        get_device_name=lambda *_: "cpu",
        mem_get_info=lambda *_: (0, 0),
    )
    module.__dict__.update(
        dict.fromkeys(("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"), zero)
    )
    return module


_DEVICE_MODULE = _device_module()


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """Host memory as the device. Every accelerator-only call is a no-op."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return _DEVICE_MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return os.environ.get(PLATFORM_VARIABLE, "").strip().lower() == "cpu"

    def current_device(self) -> torch.device:  # type: ignore[override]
        # An index would mean "accelerator 0" to Tensor.to().
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        # veRL's pools count "GPU" only; ``ray.init(num_gpus=N)`` provides N logical ones.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def rollout_env_vars(self) -> dict[str, str]:
        # Rollout engines start processes of their own, which must land on this platform too.
        return {PLATFORM_VARIABLE: "cpu"} | {name: os.environ.get(name, value) for name, value in _VLLM_ON_CPU.items()}

    def cudart(self) -> Any:
        return None


def assert_platform(expected: str) -> None:
    """Check that veRL computes on ``expected`` (``cpu``, ``cuda``, ``npu``) in this process.

    veRL swallows a plugin that fails to load and falls back to another platform, so every process checks at start-up.

    Raises:
        PlatformError: it does not.
    """
    from verl.utils.device import get_device_name

    try:
        actual = get_device_name()
    except ValueError as error:
        raise PlatformError(f"veRL found no platform: {error} Check {PLATFORM_VARIABLE} and reinstall this project.")
    if actual != expected:
        advice = f"set {PLATFORM_VARIABLE}=cpu" if expected == "cpu" else f"unset {PLATFORM_VARIABLE}"
        raise PlatformError(
            f"veRL runs on {actual!r} but trainer.device is {expected!r}: {advice} before Ray and Python start "
            "(and check that this project is installed, so that veRL finds its plugin)."
        )
