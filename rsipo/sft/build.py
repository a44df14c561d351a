"""The last stage: from the annotations to samples, split, metrics, metadata and hashes. Nothing in it is random or paid for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import pyarrow as pa

from agent_system.files import file_sha256
from rsipo.problems import UserError
from rsipo.record_lines import read_json, read_records, write_records
from rsipo.searchdata.files import write_json
from rsipo.sft.dataset import sft_record, validation_tasks, write_parquet
from rsipo.sft.layout import MAX_LENGTH, SftFiles
from rsipo.sft.manifest import FORMAT, annotation_metrics, split_metrics, trajectory_metrics, write_hashes

#: What the paper fine-tunes with; the training script records what it really did.
_PUBLISHED_SFT = {"epochs": 3, "learning_rate": 5e-6, "global_batch_size": 8}
_SAMPLE = "run rsipo sft sample"
_COLLECT = "run rsipo sft collect"
_ANNOTATE = "run rsipo sft annotate"


def build(files: SftFiles, *, share: float, seed: int) -> dict[str, Any]:
    """Write everything that follows from the annotations; returns the metrics.

    Args:
        share: of the tasks, for validation.
        seed: of the split.

    Raises:
        UserError: a stage before is missing or has changed since, or nothing is left to train on.
    """
    annotating = read_json(files.annotating, _ANNOTATE)
    _check_current(files, annotating)
    tasks = {row["task_id"]: row for row in read_records(files.tasks, _SAMPLE)}
    annotations = list(read_records(files.annotations, _ANNOTATE))
    records = [sft_record(row, tasks[row["task_id"]]) for row in annotations if row["parse_ok"]]
    used = {record["task_id"] for record in records}
    held_out = validation_tasks((task for name, task in tasks.items() if name in used), share, seed)
    train = [record for record in records if record["task_id"] not in held_out]
    validation = [record for record in records if record["task_id"] in held_out]

    files.hashes.unlink(missing_ok=True)  # until the new one, the folder claims nothing
    benchmark = annotating["benchmark"]
    write_records(files.records, records)
    write_parquet(files.train, train, benchmark)
    write_parquet(files.validation, validation, benchmark)
    metrics = {
        "tasks": len(tasks),
        **trajectory_metrics(read_records(files.trajectories, _COLLECT)),
        **annotation_metrics(annotations),
        "without_annotation": annotating["without_annotation"],
        "records": len(records),
        "split": split_metrics(train, validation),
    }
    write_json(files.metrics, metrics)
    split = {"by": "task", "validation_share": share, "seed": seed}
    write_json(files.metadata, _metadata(files, annotating, split))
    write_hashes(files)
    return metrics


def _check_current(files: SftFiles, annotating: Mapping[str, Any]) -> None:
    """The annotations are those of the trajectories that are there."""
    for path, remedy in ((files.trajectories, _COLLECT), (files.annotations, _ANNOTATE)):
        if not path.is_file():
            raise UserError(f"{path} is missing; {remedy}")
        if file_sha256(path) != annotating.get("sha256", {}).get(path.name):
            raise UserError(f"the annotations are not finished or {path} has changed since; {_ANNOTATE} --resume")


def _metadata(files: SftFiles, annotating: Mapping[str, Any], split: Mapping[str, Any]) -> dict[str, Any]:
    rollouts = read_json(files.rollouts / "settings.json", _COLLECT)
    return {
        "format": FORMAT,
        "benchmark": annotating["benchmark"],
        "base_model": rollouts["policy"],
        "sampling": read_json(files.sampling, _SAMPLE),
        "rollouts": {**rollouts["protocol"], "per_task": len(rollouts["protocol"]["seeds"])},
        "annotation": {name: value for name, value in annotating.items() if name not in ("benchmark", "sha256")},
        "split": dict(split),
        "published_sft": {**_PUBLISHED_SFT, "max_length": MAX_LENGTH[annotating["benchmark"]]},
        "versions": {**rollouts["versions"], "rsipo": version("rsipo"), "pyarrow": pa.__version__},
    }
