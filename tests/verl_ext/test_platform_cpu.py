"""veRL finds the CPU platform by itself, uses it only when told to, and a wrong platform is noticed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import verl
from verl.utils.device import get_device_name, get_nccl_backend
from verl_ext.platform_cpu import assert_platform
print(get_device_name())
assert_platform({expected!r})
"""


def _run(expected: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM.format(expected=expected)],
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_entry_point_provides_the_platform() -> None:
    done = _run("cpu", VERL_PLATFORM="cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "cpu"


@pytest.mark.parametrize("environment", [{}, {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_PLUGINS": "none"}])
def test_another_platform_is_noticed(environment: dict[str, str]) -> None:
    """Without the variable a CPU node is no CPU platform; with it but without the plugin there is no platform."""
    done = _run("cpu", **environment)
    assert done.returncode != 0
    assert "PlatformError" in done.stderr or "Unknown platform" in done.stderr


def test_registered_name_and_collectives() -> None:
    from verl_ext.platform_cpu import PlatformCPU

    platform = PlatformCPU()
    assert platform.communication_backend_name() == "gloo"
    assert platform.ray_resource_options(2) == {"num_gpus": 2}
    assert platform.device_module.max_memory_allocated() == 0
    assert platform.rollout_env_vars() == {"VERL_PLATFORM": "cpu"}
