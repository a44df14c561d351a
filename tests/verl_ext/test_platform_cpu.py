"""veRL finds the CPU platform by itself, uses it only when told to, and a wrong platform is noticed."""

from __future__ import annotations

import os
import subprocess
import sys

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


def test_another_platform_is_noticed() -> None:
    """Without the variable the plugin keeps out of the way, and a run that wants the CPU says what is missing."""
    done = _run("cpu")
    assert done.returncode != 0
    assert "set VERL_PLATFORM=cpu" in done.stderr


def test_registered_name_and_collectives() -> None:
    from verl_ext.platform_cpu import PlatformCPU

    platform = PlatformCPU()
    assert platform.communication_backend_name() == "gloo"
    assert platform.ray_resource_options(2) == {"num_gpus": 2}
    assert platform.device_module.max_memory_allocated() == 0
    assert platform.rollout_env_vars()["VERL_PLATFORM"] == "cpu"
