"""Python, the installed versions against the supported ones, and the compiler."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from collections.abc import Iterator, Mapping

from packaging.requirements import Requirement

from rsipo.doctor.findings import Finding, Level
from rsipo.preflight import SUPPORTED, SUPPORTED_VLLM_CPU, version_problems

_AREA = "software"
_LOCKED_PYTHON, _ALLOWED_PYTHON = (3, 11), ((3, 10), (3, 11), (3, 12))
_INSTALL = {("cpu", "cpu"): "bash scripts/setup.sh", ("cpu", "vllm"): "bash scripts/setup_vllm_cpu.sh"}
_COMPILERS = ("c++", "g++", "clang++")


def check_software(device: str, rollout: str, environment: str) -> Iterator[Finding]:
    """Findings for a device (``cpu``, ``cuda``), a rollout backend and a benchmark."""
    yield _python()
    problems = version_problems(device, rollout)
    supported = SUPPORTED_VLLM_CPU if (device, rollout) == ("cpu", "vllm") else SUPPORTED.get(device, SUPPORTED["cuda"])
    install = _INSTALL.get((device, rollout), f"in a GPU environment: pip install -e '.[gpu,{environment}]'")
    yield from _versions(supported, problems, install)
    yield from _versions(_extra(environment), [], f"pip install -e '.[{environment}]'")
    yield _compiler(device)


def _python() -> Finding:
    found = sys.version_info[:2]
    text = ".".join(map(str, sys.version_info[:3]))
    if found == _LOCKED_PYTHON:
        return Finding(_AREA, "Python", "ok", text)
    level: Level = "warn" if found in _ALLOWED_PYTHON else "fail"
    return Finding(_AREA, "Python", level, text, "the lock is for Python 3.11; scripts/setup.sh makes an environment")


def _versions(supported: Mapping[str, str], problems: list[str], install: str) -> Iterator[Finding]:
    """A missing package is a failure; another version than the supported one is one where ``problems`` says so."""
    for name, wanted in supported.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = ""
        if found.split("+")[0] == wanted:
            yield Finding(_AREA, name, "ok", found)
            continue
        stops = not found or any(line.startswith(f"{name} ") for line in problems)
        remedy = f"{wanted} is needed; {install}" if not found else f"{wanted} is supported; {install}"
        yield Finding(_AREA, name, "fail" if stops else "warn", found or "not installed", remedy)


def _extra(name: str) -> dict[str, str]:
    """The pinned packages of the extra that a benchmark needs, from this project's own metadata."""
    try:
        lines = importlib.metadata.requires("rsipo") or []
    except importlib.metadata.PackageNotFoundError:  # run from a folder
        return {}
    pinned = {}
    for requirement in map(Requirement, lines):
        marker, versions = requirement.marker, [spec for spec in requirement.specifier if spec.operator == "=="]
        if versions and marker and marker.evaluate({"extra": name}) and not marker.evaluate({"extra": ""}):
            pinned[requirement.name] = versions[0].version
    return pinned


def _compiler(device: str) -> Finding:
    found = next((path for name in _COMPILERS if (path := shutil.which(name))), None)
    if found:
        return Finding(_AREA, "C++ compiler", "ok", found)
    remedy = "install one (Debian: apt-get install build-essential)"
    if device == "cuda":
        return Finding(_AREA, "C++ compiler", "fail", "none; torch.compile and Triton need one", remedy)
    return Finding(_AREA, "C++ compiler", "warn", "none; only an installation from source needs one", remedy)
