"""The fine-tuned model as a verified Hugging Face folder, by the code that exports policies."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from omegaconf import OmegaConf

from rsipo.export.card import describe_base
from rsipo.export.command import write_model
from rsipo.export.folder import MANIFEST, first_difference, new_folder
from rsipo.export.source import Source
from rsipo.problems import UserError
from rsipo.run_files import RunFiles, read_metrics
from rsipo.sft.training_settings import TrainingSetup

_TEMPLATE = "training_card.md.j2"
ORIGIN = "fine_tuning.json"
"""Of the exported folder: model, data and settings it was made from."""
_VERSIONS = ("rsipo", "verl", "torch", "transformers")


def is_exported(target: Path) -> bool:
    """Whether a model was written there: its manifest is written last."""
    return (target / MANIFEST).is_file()


def check_exported(
    target: Path, made_from: Mapping[str, Any], progress: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Whether the model that was written there is that of this run, and still whole. ``progress``: bytes (read, in all).

    Raises:
        UserError: it is another model, or a file is missing or has changed.
    """
    if _origin(target) != made_from:
        raise UserError(
            f"EXPORT_MODEL_DIR={target} holds another model ({ORIGIN} differs): name another folder, or move it away"
        )
    if (name := first_difference(target, progress)) is not None:
        raise UserError(
            f"{target / name} is missing or not as it was exported ({MANIFEST}): move {target} away, RESUME=true exports it again"
        )


def check_export_folder(target: Path) -> None:
    """Whether a model may be written to ``target``.

    Raises:
        UserError: it exists and is anything but an empty folder.
    """
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir() or any(target.iterdir()):
        raise UserError(f"EXPORT_MODEL_DIR={target} exists and is not an empty folder: name another, or move it away")


def _origin(target: Path) -> object:
    try:
        return json.loads((target / ORIGIN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def export_model(
    setup: TrainingSetup, files: RunFiles, step: int, checkpoint: Path, target: Path, made_from: Mapping[str, Any]
) -> int:
    """Write the checkpoint's model to ``target``, complete or not at all; returns how many texts' token ids were compared.

    ``made_from`` is written beside it (``ORIGIN``), and is what ``check_exported`` compares.

    Raises:
        UserError: ``target`` is not free, or the folder does not prove equal to the checkpoint.
    """
    check_export_folder(target)
    if target.is_dir():
        target.rmdir()
    config = OmegaConf.to_container(setup.config, resolve=True)
    assert isinstance(config, dict)
    source = Source(files, {str(key): value for key, value in config.items()}, step, checkpoint)
    try:
        with new_folder(target, overwrite=False) as folder:
            (folder / ORIGIN).write_text(json.dumps(made_from, indent=1) + "\n", encoding="utf-8")
            return write_model(
                folder, source, "bf16", lambda ranks: _card(setup, source, name=target.name, world_size=ranks)
            )
    except OSError as error:
        raise UserError(f"{target} was not written ({error.strerror or error}); free space and resume") from error


def _card(setup: TrainingSetup, source: Source, *, name: str, world_size: int) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    base = describe_base(source.base)
    metadata: dict[str, str | list[str]] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        **base.licence,
    }
    metadata |= {"base_model": base.repository} if base.repository else {}
    metadata["tags"] = ["rsipo", "sft", "agent", setup.benchmark]
    rows = read_metrics(source.files.metrics)
    losses = [(f"{row['epoch']:.0f}", f"{row['validation/loss']:.4f}") for row in rows if "validation/loss" in row]
    return environment.get_template(_TEMPLATE).render(
        metadata=yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True).strip(),
        name=name,
        benchmark=setup.benchmark,
        base=base,
        world_size=world_size,
        step=source.step,
        settings=setup.settings.model_dump() | {"max_length": setup.max_length},
        losses=losses,
        versions={package: importlib.metadata.version(package) for package in _VERSIONS},
    )
