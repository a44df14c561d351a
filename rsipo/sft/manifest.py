"""What a data set says of itself: ``metrics.json``, ``metadata.json`` and ``SOURCE_SHA256.json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent_system.files import file_sha256
from rsipo.searchdata.files import write_json
from rsipo.searchdata.quality import percentiles
from rsipo.sft.layout import PUBLISHED, SftFiles

FORMAT = 1

Record = Mapping[str, Any]


def trajectory_metrics(trajectories: Iterable[Record]) -> dict[str, Any]:
    """Counts, success rate per task type, and shares of refused actions. Reads the records once."""
    episodes: Counter[str] = Counter()
    successes: Counter[str] = Counter()
    steps: list[int] = []
    invalid = inadmissible = without_turns = 0
    for record in trajectories:
        episodes[record["task_type"]] += 1
        successes[record["task_type"]] += record["success"]
        steps.append(record["num_steps"])
        invalid += record["invalid_actions"]
        inadmissible += record["inadmissible_actions"]
        without_turns += not record["num_steps"]
    turns = sum(steps)
    return {
        "trajectories": len(steps),
        "without_turns": without_turns,
        "success_rate": _share(sum(successes.values()), len(steps)),
        "success_rate_by_type": {name: _share(successes[name], episodes[name]) for name in sorted(episodes)},
        "trajectories_by_type": dict(sorted(episodes.items())),
        "num_steps": percentiles(steps),
        "invalid_action_share": _share(invalid, turns),
        "inadmissible_action_share": _share(inadmissible, turns),
    }


def annotation_metrics(annotations: Sequence[Record]) -> dict[str, Any]:
    """How many could be used, why the others could not, and what they cost in tokens."""
    reasons = Counter(record["reason"] for record in annotations if not record["parse_ok"])
    usages = [record["usage"] for record in annotations if record["usage"]]
    return {
        "annotations": len(annotations),
        "valid": len(annotations) - sum(reasons.values()),
        "dropped": dict(sorted(reasons.items())),
        "by_annotator": dict(sorted(Counter(record["annotator"] for record in annotations).items())),
        "leaks_answer": sum(record["leaks_answer"] and record["parse_ok"] for record in annotations),
        "prompts_shortened": sum(record["prompt_shortened"] for record in annotations),
        "prompt_tokens_of_policy": percentiles([record["prompt_tokens"] for record in annotations]),
        "annotator_prompt_tokens": sum(usage["prompt_tokens"] for usage in usages),
        "annotator_completion_tokens": sum(usage["completion_tokens"] for usage in usages),
    }


def split_metrics(train: Sequence[Record], validation: Sequence[Record]) -> dict[str, Any]:
    """Sizes of the two parts."""
    return {
        name: {
            "records": len(part),
            "tasks": len({record["task_id"] for record in part}),
            "successful_sources": sum(record["source_success"] for record in part),
            "by_type": dict(sorted(Counter(record["task_type"] for record in part).items())),
        }
        for name, part in (("train", train), ("validation", validation))
    }


def write_hashes(files: SftFiles) -> dict[str, str]:
    """Write and return the sha256 of every published file."""
    hashes = {name: file_sha256(files.root / name) for name in PUBLISHED}
    write_json(files.hashes, hashes)
    return hashes


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
