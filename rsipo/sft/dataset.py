"""From annotations to samples: ``sft_records.jsonl.gz``, and the split into ``train.parquet`` and ``val.parquet`` by task."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agent_system.files import replacing
from rsipo.problems import UserError
from rsipo.sft.strata import draw, proportional_quotas
from rsipo.skills import SKILL_KEY, SUMMARY_KEY

_COMMON = [
    ("prompt", pa.string()),
    ("response", pa.string()),
    ("skill_id", pa.string()),
    ("task_id", pa.string()),
    ("task_type", pa.string()),
    ("source_success", pa.bool_()),
    ("source_num_steps", pa.int64()),
    ("parse_ok", pa.bool_()),
]
_ON_SEARCH = [
    ("row_index", pa.int64()),
    ("data_source", pa.string()),
    ("source_final_task_score", pa.float64()),
    ("analysis_prompt_version", pa.string()),
]
#: Columns of the two Parquet files, by benchmark.
SCHEMAS = {"alfworld": pa.schema(_COMMON), "search": pa.schema([*_COMMON, *_ON_SEARCH])}


def sft_record(annotation: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    """The sample of a valid annotation: the columns of its benchmark, and ``rollout`` and ``annotator`` besides.

    Args:
        annotation: a record of ``annotations.jsonl.gz``.
        task: its task's row of ``sampled_tasks.jsonl.gz``.
    """
    answer = {SUMMARY_KEY: annotation["episode_summary"], SKILL_KEY: annotation["episode_skill"]}
    record = {
        "prompt": annotation["prompt"],
        "response": json.dumps(answer, ensure_ascii=False),
        "skill_id": annotation["trajectory_id"],
        "task_id": annotation["task_id"],
        "task_type": annotation["task_type"],
        "source_success": annotation["source_success"],
        "source_num_steps": annotation["source_num_steps"],
        "parse_ok": True,
    }
    if task["benchmark"] == "search":
        record |= {
            "row_index": task["row_index"],
            "data_source": task["data_source"],
            "source_final_task_score": annotation["source_final_task_score"],
            "analysis_prompt_version": annotation["analysis_prompt_version"],
        }
    return record | {"rollout": annotation["rollout"], "annotator": annotation["annotator"]}


def validation_tasks(tasks: Iterable[Mapping[str, Any]], share: float, seed: int) -> set[str]:
    """Ids of the tasks whose samples validate: a ``share`` of them, at least one, in proportion to the task types.

    Raises:
        UserError: fewer than two tasks.
    """
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for task in tasks:
        groups[task["task_type"]].append(task["task_id"])
    total = sum(map(len, groups.values()))
    if total < 2:
        raise UserError("a split by task needs at least two tasks with a valid annotation")
    count = min(max(1, round(share * total)), total - 1)
    quotas = proportional_quotas({name: len(ids) for name, ids in groups.items()}, count)
    return draw(groups, quotas, seed=seed, purpose="sft validation")


def write_parquet(path: Path, records: Sequence[Mapping[str, Any]], benchmark: str) -> None:
    """Write the columns of the benchmark's schema atomically; equal records give equal bytes (of one pyarrow)."""
    table = pa.Table.from_pylist([dict(record) for record in records], schema=SCHEMAS[benchmark])
    with replacing(path) as temporary:
        pq.write_table(table, temporary)
