"""``rsipo export``: a run's checkpoint as a self-contained, verified Hugging Face folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from rich.console import Console
from rich.progress import Progress

from rsipo.configuration import nearest
from rsipo.export.card import render_card
from rsipo.export.folder import check_target, new_folder
from rsipo.export.source import Source, find_source
from rsipo.models import read_model
from rsipo.plan import GIB
from rsipo.problems import UserError

if TYPE_CHECKING:
    import torch

    from verl_ext.export import ShardedPolicy

PRECISIONS = ("bf16", "fp32")


def export_command(
    run: str,
    step: str | None,
    repository: str | None,
    *,
    out: Path | None,
    precision: str,
    overwrite: bool,
    private: bool,
) -> Path:
    """Merge, write, verify, name; then upload where a repository is given. Returns the folder.

    Raises:
        UserError: nothing was written; or, for an upload, the folder is there and only the upload failed.
    """
    if precision not in PRECISIONS:
        raise UserError(f"--dtype {precision}: {nearest(precision, PRECISIONS)}")
    source = find_source(run, step)
    name = f"{source.files.root.resolve().name}-step{source.step}" + ("-fp32" if precision == "fp32" else "")
    target = (out or source.files.root / "export" / name).expanduser().absolute()
    check_target(target, overwrite=overwrite)
    if repository:
        from rsipo.export.hub import check_repository

        check_repository(repository)
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"Exporting step {source.step} of {source.files.root} in {precision}", markup=False)
    try:
        with new_folder(target, overwrite=overwrite) as folder:
            compared = write_model(
                folder,
                source,
                precision,
                lambda ranks: render_card(source, name=target.name, dtype=precision, world_size=ranks),
            )
    except OSError as error:
        raise UserError(
            f"{target} was not written ({error.strerror or error}); free space, or use --out DIR"
        ) from error
    console.print(f"Verified: every weight, the logits and {compared} texts' token ids equal the checkpoint's")
    console.print(f"Model: {target}", markup=False)
    if repository:
        from rsipo.export.hub import upload

        console.print(f"Uploaded: {upload(target, repository, private=private)}", markup=False)
    return target


def write_model(folder: Path, source: Source, precision: str, card: Callable[[int], str]) -> int:
    """Write the model into ``folder`` and check it there; returns how many texts were tokenized to compare.

    Args:
        precision: one of ``PRECISIONS``.
        card: gives the model card from the number of ranks that wrote the checkpoint.

    Raises:
        UserError: the checkpoint cannot be merged, there is no room, or what was written differs from it.
    """
    import torch

    from rsipo.export.verify import check_model, check_tokenizer, load_tokenizer, probe_logits, probes, written_texts
    from verl_ext.export import ExportError, ShardedPolicy

    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    kwargs = source.config["policy"].get("chat_template_kwargs") or {}
    try:
        console = Console()
        with (
            _quiet_transformers(),
            Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
        ):
            policy = ShardedPolicy(source.checkpoint / "actor")
            _check_room(policy, dtype, folder)
            bar = progress.add_task("merging")
            model = policy.build(dtype, lambda done, total: progress.update(bar, completed=done, total=total))
            prompts = probes(load_tokenizer(policy.settings_folder, kwargs))
            logits = probe_logits(model, prompts)
            progress.update(bar, description="writing", total=None)
            policy.write(model, folder)
            del model  # one copy in memory at a time
            (folder / "README.md").write_text(card(policy.world_size), encoding="utf-8")
            progress.update(bar, description="verifying", total=None)
            read_model(folder)
            trained_with = source.base if (source.base / "config.json").is_file() else policy.settings_folder
            compared = check_tokenizer(
                load_tokenizer(folder, kwargs), load_tokenizer(trained_with, kwargs), written_texts(source.files.audit)
            )
            check_model(folder, lambda: policy.tensors(dtype), prompts, logits)
    except ExportError as error:
        raise UserError(str(error)) from error
    return compared


def _check_room(policy: ShardedPolicy, dtype: torch.dtype, folder: Path) -> None:
    needed = policy.size(dtype) / GIB
    free, memory = shutil.disk_usage(folder).free / GIB, psutil.virtual_memory().available / GIB
    if needed * 1.02 > free:
        raise UserError(f"the model takes {needed:.1f} GiB of disk, {free:.1f} GiB are free in {folder.parent.parent}")
    if needed * 1.1 > memory:
        raise UserError(f"the model takes {needed:.1f} GiB of memory, {memory:.1f} GiB are free; use a larger machine")


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Its own progress bars would be drawn over ours."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
