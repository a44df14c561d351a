"""Accelerators, disks and ports of this machine; a script stands in for ``nvidia-smi``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rsipo.doctor.findings import Finding
from rsipo.doctor.machine import check_machine

GPU = "NVIDIA H100 80GB HBM3, 81559, 570.1"


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def install(script: str) -> None:
        path = tmp_path / "bin" / "nvidia-smi"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(path.parent), prepend=":")

    return install


def gpu_line(wanted: int, memory: float, tmp_path: Path) -> Finding:
    return {finding.what: finding for finding in check_machine("cuda", wanted, memory, tmp_path)}["GPU"]


def test_the_gpus_a_profile_asks_for(nvidia_smi: Callable[[str], None], tmp_path: Path) -> None:
    nvidia_smi(f"echo '{GPU}'; echo '{GPU}'")
    assert gpu_line(2, 80, tmp_path).level == "ok"
    short = gpu_line(8, 80, tmp_path)
    assert (short.level, short.found.split(" (")[0]) == ("fail", "2 of 8")
    small = gpu_line(2, 96, tmp_path)
    assert (small.level, small.remedy.split(" and ")[0]) == ("fail", "set hardware.device_memory_gib=79")


@pytest.mark.parametrize("script", ["exit 9", "echo nonsense"])
def test_a_driver_that_does_not_answer(nvidia_smi: Callable[[str], None], tmp_path: Path, script: str) -> None:
    nvidia_smi(script)
    line = gpu_line(1, 80, tmp_path)
    assert (line.level, "nvidia-smi failed" in line.found) == ("fail", True)


def test_a_folder_of_runs_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    findings = {finding.what: finding for finding in check_machine("cpu", 0, 0, tmp_path / "file" / "work")}
    assert findings["disk of runs"].level == "fail"
    assert "RSIPO_WORK" in findings["disk of runs"].remedy
    assert findings["loopback"].level == "ok"


def test_the_retrievers_port(tmp_path: Path) -> None:
    findings = {finding.what: finding for finding in check_machine("cpu", 0, 0, tmp_path)}
    assert findings["port 8000"].level == "ok"
