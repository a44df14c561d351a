"""A run of the embedded policy with two complete checkpoints, written by veRL's own checkpoint manager on one rank."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rsipo.configuration import compose_run, save_resolved
from rsipo.models import EMBEDDED_POLICY
from rsipo.run_files import RunFiles
from verl_ext.checkpoint import CheckpointStore

NAME = "rsipo-tiny-policy-alfworld"


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 6 and 12 of 40, with metrics and an audit. Do not change it: see ``run``."""
    import torch
    import torch.distributed as dist
    from omegaconf import OmegaConf
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    root = tmp_path_factory.mktemp("runs") / NAME
    files = RunFiles(root)
    save_resolved(compose_run(["recipe=embedded", f"policy.path={EMBEDDED_POLICY}", f"run.name={NAME}"]), files.config)
    files.metrics.write_text("".join(json.dumps(row) + "\n" for row in _metrics()))
    files.audit.mkdir()
    (files.audit / "step-000012.jsonl").write_text(
        json.dumps({"skill": {"text": "Look in drawer 1 first."}}) + "\n{}\n"
    )

    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_POLICY)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for step in (6, 12):
            model = AutoModelForCausalLM.from_pretrained(EMBEDDED_POLICY, dtype=torch.float32)
            torch.manual_seed(step)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * 1e-3)
            sharded = fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",)))
            contents = OmegaConf.create({"save_contents": ["model"], "load_contents": ["model"], "async_save": False})
            manager = FSDPCheckpointManager(sharded, processing_class=tokenizer, checkpoint_config=contents)
            store = CheckpointStore(files.checkpoints, keep=None)
            store.save(step, {"step": step}, lambda folder, save=manager.save_checkpoint: save(str(folder / "actor")))
    finally:
        dist.destroy_process_group()
    return root


def _metrics() -> list[dict[str, Any]]:
    """Of a run that went on to step 40 after the checkpoints, with a step without an applied check."""
    rows: list[dict[str, Any]] = [{"step": 0, "evaluation/success": 0.25, "evaluation/episodes": 120}]
    for step in range(1, 41):
        row = {"step": step, "student/success": step / 100, "check/gain": 0.1, "check/trust": 1.1}
        rows.append(row if step != 3 else {"step": step, "student/success": float("nan")})
    return rows


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may change."""
    return Path(shutil.copytree(trained_run, tmp_path / NAME))


@pytest.fixture
def change_config(run: Path) -> Callable[[str, Any], None]:
    """``change_config("policy.path", value)`` in the run's saved configuration."""
    from omegaconf import OmegaConf

    def change(key: str, value: Any) -> None:
        path = RunFiles(run).config
        config = OmegaConf.load(path)
        OmegaConf.update(config, key, value)
        OmegaConf.save(config, path)

    return change
