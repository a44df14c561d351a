"""Compose a run's configuration (Hydra) and read its own sections (pydantic). Imports neither torch nor Ray nor veRL."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agent_system.files import write_atomically
from rsipo.problems import UserError
from verl_ext.verl_config import verl_config_folder

CONFIG_DIRECTORY = Path(__file__).parent / "config"

OmegaConf.register_new_resolver("rsipo.positive", lambda value: float(value) > 0, replace=True)
OmegaConf.register_new_resolver("rsipo.max", lambda *values: max(values), replace=True)


def compose_run(overrides: Sequence[str]) -> DictConfig:
    """The resolved configuration of a run.

    Args:
        overrides: Hydra overrides, such as ``method=grpo`` or ``training.steps=10``.

    Raises:
        UserError: an unknown key, group or option (with the nearest known name), a value of the wrong form, or veRL missing.
    """
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIG_DIRECTORY), version_base=None):
            search_path = f"hydra.searchpath=[file://{_verl_config_directory()}]"
            config = compose("rsipo", overrides=[search_path, *overrides])
    except (HydraException, ValueError) as error:
        raise UserError(_explain(error, overrides)) from error
    try:
        OmegaConf.resolve(config)
    except OmegaConfBaseException as error:
        raise UserError(f"configuration: {str(error).splitlines()[0]}") from error
    return config


def options(group: str) -> list[str]:
    """The known names of a configuration group, such as ``method``."""
    return sorted(path.stem for path in (CONFIG_DIRECTORY / group).glob("*.yaml"))


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for a name that is not known: the nearest one, else all of them."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known) or 'none'}"


def section(config: DictConfig, name: str) -> dict[str, Any]:
    """One section as plain Python values."""
    values = OmegaConf.to_container(config[name], resolve=True)
    if not isinstance(values, dict):
        raise UserError(f"configuration: '{name}' must be a section, not {values!r}")
    return {str(key): value for key, value in values.items()}


def save_resolved(config: DictConfig, path: Path) -> None:
    """Write the resolved configuration as YAML."""
    write_atomically(path, OmegaConf.to_yaml(config, resolve=True))


def _verl_config_directory() -> Path:
    try:
        return verl_config_folder()
    except ModuleNotFoundError:
        raise UserError("veRL is not installed. Install the locked environment: bash scripts/setup.sh") from None


def _explain(error: Exception, overrides: Sequence[str]) -> str:
    text = str(error)
    if found := re.search(r"Could not override '([^']+)'", text):
        key = found.group(1)
        return f"unknown setting '{key}': {nearest(key, _known_keys(overrides))} (to add a key of veRL's own, write +{key}=…)"
    if found := re.search(r"Could not find '([^/']+)/([^']+)'", text):
        group, name = found.groups()
        return f"unknown {group} '{name}': {nearest(name, options(group))}"
    if found := re.search(r"Could not override '?(\w+)", text):
        return f"unknown configuration group '{found.group(1)}': {nearest(found.group(1), _groups())}"
    first = text.splitlines()[0]
    return f"bad override in {' '.join(overrides)}: {first}"


def _groups() -> list[str]:
    return sorted(path.name for path in CONFIG_DIRECTORY.iterdir() if path.is_dir())


def _known_keys(overrides: Sequence[str]) -> list[str]:
    known = _groups()
    environment = next((text[4:] for text in reversed(overrides) if text.startswith("env=")), "alfworld")

    def walk(node: Any, prefix: str) -> None:
        if not isinstance(node, dict):
            return
        for key, value in node.items():
            known.append(f"{prefix}{key}")
            walk(value, f"{prefix}{key}.")

    for path in [CONFIG_DIRECTORY / "rsipo.yaml", *CONFIG_DIRECTORY.glob("*/*.yaml")]:
        if path.parent.name == "env" and path.stem != environment:
            continue  # another benchmark's settings
        values = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        grouped = path.parent != CONFIG_DIRECTORY and "@package _global_" not in path.read_text(encoding="utf-8")
        walk(values, f"{path.parent.name}." if grouped else "")
    return [key for key in known if not key.startswith(("defaults", "hydra"))]
