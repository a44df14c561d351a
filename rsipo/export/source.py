"""What is exported: a run's folder and one of its complete checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rsipo.configuration import nearest
from rsipo.problems import UserError
from rsipo.run_files import RunFiles
from verl_ext.checkpoint import CheckpointStore


@dataclass(frozen=True, slots=True)
class Source:
    """One checkpoint of one run.

    Attributes:
        files: of the run.
        config: the run's resolved configuration as plain values. An older run may lack newer keys.
        step: of the checkpoint.
        checkpoint: its folder.
    """

    files: RunFiles
    config: Mapping[str, Any]
    step: int
    checkpoint: Path

    @property
    def base(self) -> Path:
        """The model folder the run started from; it may be gone."""
        return Path(str(self.config["policy"]["path"]))


def find_source(run: str, step: str | None) -> Source:
    """Find the run (a folder, or a name under ``$RSIPO_WORK/runs``) and its checkpoint (default: the newest complete one).

    Raises:
        UserError: no such run or no such complete checkpoint, with what there is.
    """
    files = _find_run(run)
    complete = dict(CheckpointStore(files.checkpoints, keep=None).complete())
    if not complete:
        raise UserError(f"{files.checkpoints} holds no complete checkpoint: there is nothing to export yet")
    chosen = max(complete) if step in (None, "latest") else _number(str(step))
    if chosen not in complete:
        folder = files.checkpoints / f"global_step_{chosen}"
        what = f"{folder} is incomplete" if folder.exists() else f"{files.root} has no checkpoint of step {chosen}"
        raise UserError(f"{what}; complete are: {', '.join(map(str, complete))}")
    return Source(files, _read_config(files.config), chosen, complete[chosen])


def _find_run(run: str) -> RunFiles:
    runs = Path(os.environ.get("RSIPO_WORK", "outputs")) / "runs"
    given = Path(run).expanduser()
    for folder in (given, runs / run, given.absolute().parent):
        if (files := RunFiles(folder)).config.is_file():
            return files
    known = sorted(path.name for path in runs.iterdir() if path.is_dir()) if runs.is_dir() else []
    raise UserError(f"no run '{run}': neither a run's folder nor a name in {runs}: {nearest(given.name, known)}")


def _number(step: str) -> int:
    digits = step.removeprefix("global_step_")
    if not (digits.isascii() and digits.isdigit()):
        raise UserError(f"STEP must be a number or 'latest', not '{step}'; the form is RUN [STEP] [HF_REPO]")
    return int(digits)


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        values = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
        assert isinstance(values, dict)
        values["policy"]["path"]
    except Exception as error:  # YAML and OmegaConf have no common base
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} is no configuration of a run ({reason}); restore it from a backup") from error
    return {str(key): value for key, value in values.items()}
