"""The model card of an exported policy: everything in it is read from the run."""

from __future__ import annotations

import importlib.metadata
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rsipo.export.source import Source
from rsipo.models import family
from rsipo.run_files import read_metrics

_TEMPLATE = "model_card.md.j2"
_VERSIONS = ("rsipo", "verl", "torch", "transformers")
_CURVE_ROWS = 15
#: Column of the training curve -> (metric, number format).
_CURVE = {
    "student success": ("student/success", "{:.1%}"),
    "teacher success": ("teacher/success", "{:.1%}"),
    "replay gain": ("check/gain", "{:+.3f}"),
    "trust": ("check/trust", "{:.3f}"),
    "OPSD loss": ("opsd/loss", "{:.4f}"),
    "KL to reference": ("ppo/kl_to_reference", "{:.4f}"),
}
#: Section of the configuration -> what the card shows of it; nothing named: all.
_SETTINGS: dict[str, tuple[str, ...]] = {
    "method": (),
    "training": ("steps", "tasks_per_step", "learning_rate", "weight_decay", "ppo_mini_batch_size", "clip_ratio",
                 "kl_coefficient", "entropy_coefficient", "temperature"),
    "check": ("num_rollouts", "num_replays", "alpha", "eta", "kappa", "omega_max", "rho"),
    "advantage": (),
    "prompt": (),
    "env": ("max_turns", "history_length", "success_reward", "invalid_action_penalty", "prompt_profile"),
    "run": ("seed",),
}  # fmt: skip
#: Family -> (repository, its licence in the hub's terms).
_PUBLISHED: dict[str, tuple[str, dict[str, str]]] = {
    "qwen2.5-7b": ("Qwen/Qwen2.5-7B-Instruct", {"license": "apache-2.0"}),
    "qwen2.5-3b": (
        "Qwen/Qwen2.5-3B-Instruct",
        {
            "license": "other",
            "license_name": "qwen-research",
            "license_link": "https://huggingface.co/Qwen/Qwen2.5-3B-Instruct/blob/main/LICENSE",
        },
    ),
    "qwen3-1.7b": ("Qwen/Qwen3-1.7B", {"license": "apache-2.0"}),
}
_LICENCE_KEYS = ("license", "license_name", "license_link")


@dataclass(frozen=True, slots=True)
class Base:
    """What is known of the model a run started from: its repository, and its licence in the hub's terms."""

    name: str
    repository: str | None
    licence: Mapping[str, str]


def render_card(source: Source, *, name: str, dtype: str, world_size: int) -> str:
    """``README.md`` of the exported folder, with the hub's metadata at its head.

    Args:
        name: of the exported model.
        dtype: ``bf16`` or ``fp32``.
        world_size: ranks that wrote the checkpoint.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    config = source.config
    base = describe_base(source.base)
    rows = [row for row in read_metrics(source.files.metrics) if row.get("step", 0) <= source.step]
    return environment.get_template(_TEMPLATE).render(
        metadata=yaml.safe_dump(_metadata(base, config), sort_keys=False, allow_unicode=True).strip(),
        name=name,
        run=source.files.root.name,
        step=source.step,
        steps=_get(config, "training", "steps"),
        environment=_get(config, "env", "name"),
        base=base,
        dtype={"bf16": "bfloat16", "fp32": "float32"}[dtype],
        world_size=world_size,
        settings=_settings(config),
        chat_template_kwargs=_get(config, "policy", "chat_template_kwargs") or {},
        response_length=_get(config, "prompt", "max_response_length") or 512,
        curve=curve(rows),
        held_out=_held_out(rows),
        evaluations=read_evaluations(source.files.root, source.step),
        versions={package: _version(package) for package in _VERSIONS},
    )


def describe_base(folder: Path) -> Base:
    """The base model from the metadata of its own card, else by the family its name shows."""
    card = _front_matter(folder / "README.md")
    repository, licence = _PUBLISHED.get(family(folder.name), (None, {}))
    stated = {key: str(card[key]) for key in _LICENCE_KEYS if card.get(key)}
    return Base(folder.name, repository, stated if "license" in stated else licence)


def curve(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The training curve: means over at most 15 blocks of steps, of the metrics that this method has."""
    steps = [row for row in rows if row["step"] > 0]
    if not steps:
        return []
    present = {label: spec for label, spec in _CURVE.items() if any(_finite(row.get(spec[0])) for row in steps)}
    size = math.ceil(len(steps) / _CURVE_ROWS)
    table = []
    for start in range(0, len(steps), size):
        block = steps[start : start + size]
        first, last = block[0]["step"], block[-1]["step"]
        line = {"steps": str(first) if first == last else f"{first}–{last}"}
        for label, (metric, form) in present.items():
            values = [row[metric] for row in block if _finite(row.get(metric))]
            line[label] = form.format(fmean(values)) if values else "–"
        table.append(line)
    return table


def read_evaluations(run: Path, step: int) -> list[dict[str, Any]]:
    """The summaries of ``rsipo evaluate`` for this step; one that cannot be read is left out."""
    found = []
    for path in sorted([*run.glob(f"eval-step{step}/summary.json"), *run.glob(f"eval-step{step}-*/summary.json")]):
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
            rows = []
            for split, whole in summary["splits"].items():
                rows += [(f"**{split}**", whole), *whole.get("types", {}).items()]
            protocol = summary.get("protocol", {})
            found.append(
                {
                    "name": path.parent.name,
                    "subset": summary.get("subset"),
                    "protocol": {
                        key: value for key, value in protocol.items() if isinstance(value, str | int | float | list)
                    },
                    "rows": [_evaluation_row(label, cell) for label, cell in rows],
                }
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def _evaluation_row(label: str, cell: Mapping[str, Any]) -> dict[str, str]:
    success = cell["success"]
    low, high = success.get("interval") or (None, None)
    return {
        "split, task type": label,
        "tasks": str(cell["tasks"]),
        "success": _percent(success["mean"]),
        "std over rounds": _percent(success.get("std")),
        "95 % interval": f"{_percent(low)} – {_percent(high)}",
        "turns": "–" if cell.get("turns") is None else f"{cell['turns']:.1f}",
    }


def _held_out(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    return [
        {
            "step": str(row["step"]),
            "success": _percent(row["evaluation/success"]),
            "episodes": str(row.get("evaluation/episodes", "–")),
        }
        for row in rows
        if _finite(row.get("evaluation/success"))
    ]


def _metadata(base: Base, config: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    values |= base.licence
    if base.repository:
        values["base_model"] = base.repository
    tags = ["rsipo", "reinforcement-learning", "agent", _get(config, "env", "name")]
    return values | {"tags": [str(tag) for tag in tags if tag]}


def _settings(config: Mapping[str, Any]) -> dict[str, str]:
    """The settings a reader asks for first, under their names in the configuration; absent ones are left out."""
    found = {}
    for name, keys in _SETTINGS.items():
        for key in keys or config.get(name) or ():
            if (value := _get(config, name, key)) is not None:
                found[f"{name}.{key}"] = json.dumps(value) if isinstance(value, dict | list) else str(value)
    return found


def _front_matter(path: Path) -> dict[str, Any]:
    try:
        parts = path.read_text(encoding="utf-8").split("---", 2)
        values = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0].strip() else None
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return values if isinstance(values, dict) else {}


def _get(config: Mapping[str, Any], section: str, key: str) -> Any:
    values = config.get(section)
    return values.get(key) if isinstance(values, Mapping) else None


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _percent(value: Any) -> str:
    return f"{value:.1%}" if _finite(value) else "–"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
