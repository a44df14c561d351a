"""The report as one HTML file: nothing is loaded from anywhere, and no text of a run is ever read as markup or script.

The table of tasks reads an index (one array per column, all tasks) that is embedded as JSON. What a row opens to is
embedded per run and step, compressed, and unpacked by the browser when it is first looked at: a long run stays light.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rsipo.audit.records import TaskRecord
from rsipo.report.breakdowns import category_rows, phase_seconds, type_rows
from rsipo.report.data import RunData
from rsipo.report.figures import Chart
from rsipo.report.style import WINDOW, series_color, stylesheet, to_svg

SNIPPET = 600
"""Characters of a skill that the index holds, for the row and the search; the whole skill is in the details."""


@dataclass(frozen=True, slots=True)
class RunCharts:
    """A run with the charts that are its alone."""

    run: RunData
    charts: Sequence[Chart]


def render(shared: Sequence[Chart], single: Sequence[RunCharts]) -> str:
    """The whole page.

    Args:
        shared: charts with all runs in them.
        single: the runs in the order of their colours, each with its own charts.
    """
    environment = Environment(
        loader=PackageLoader("rsipo.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    environment.filters |= {"percent": _percent, "signed": _signed, "number": _number}
    script = _asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    runs = [entry.run for entry in single]
    return environment.get_template("report.html.j2").render(
        runs=[_overview(entry, index) for index, entry in enumerate(single)],
        shared=[_figure(chart) for chart in shared],
        index=task_index(runs),
        chunks=list(_chunks(runs)),
        style=Markup(_asset("report.css").replace("/* palette */", stylesheet())),
        script=Markup(script),
        script_hash=digest,
        window=WINDOW,
    )


def task_index(runs: Sequence[RunData]) -> dict[str, Any]:
    """The table's columns as arrays of equal length, over the tasks of all runs; numbers not defined are None."""
    types = sorted({task_type for run in runs for task_type in run.tasks["task_type"]})
    number = {name: place for place, name in enumerate(types)}
    columns: dict[str, list[Any]] = {"run": [], "type": []}
    for place, run in enumerate(runs):
        tasks = run.tasks
        columns["run"] += [place] * len(tasks)
        columns["type"] += [number[name] for name in tasks["task_type"]]
        for name in ("step", "task_id", "status"):
            columns.setdefault(name, []).extend(tasks[name].tolist())
        columns.setdefault("skill", []).extend(text[:SNIPPET] for text in tasks["skill"])
        for name in ("control_rate", "replay_rate", "gain", "shrinkage_weight", "shrunk_gain", "skill_reward", "trust"):
            columns.setdefault(name, []).extend(_rounded(value) for value in tasks[name])
    return {"runs": [run.name for run in runs], "types": types, "columns": columns}


def task_details(run: RunData, record: TaskRecord) -> dict[str, Any]:
    """What the row of a task opens to: its audit record without the fingerprints, and the evidence trajectory."""
    transcript = run.transcripts.get((record.step, record.task_id))
    details = record.model_dump(
        exclude={"rollouts": {"__all__": {"fingerprint"}}, "replays": {"__all__": {"fingerprint"}}}
    )
    return details | {"transcript": None if transcript is None else transcript.model_dump(exclude={"task_id"})}


def _chunks(runs: Sequence[RunData]) -> Iterator[dict[str, str]]:
    """One per run and step: the details of its tasks in the order of the index, as base64 of gzipped JSON."""
    for place, run in enumerate(runs):
        for step, records in groupby(run.records, key=lambda record: record.step):
            content = json.dumps([task_details(run, record) for record in records], separators=(",", ":"))
            data = base64.b64encode(gzip.compress(content.encode(), mtime=0)).decode()
            yield {"id": f"chunk-{place}-{step}", "data": data}


def _overview(entry: RunCharts, place: int) -> dict[str, Any]:
    run = entry.run
    seconds = phase_seconds(run)
    applied = run.steps.get("update/applied")
    return {
        "name": run.name,
        "color": series_color(place),
        "charts": [_figure(chart) for chart in entry.charts],
        "method": run.config.get("method", {}).get("name"),
        "steps": int(run.metrics.index.max()),
        "tasks": len(run.tasks),
        "stats": _stats(run),
        "seconds": seconds,
        "hours": sum(seconds.values()) * len(run.steps) / 3600,
        "types": type_rows(run),
        "categories": category_rows(run),
        "check": None if run.check is None else run.check.model_dump(),
        "settings": _settings(run.config),
        "skipped": [] if applied is None else [int(step) for step, value in applied.items() if not value],
        "has_transcripts": bool(run.transcripts),
    }


def _stats(run: RunData) -> list[dict[str, str | None]]:
    """The run in numbers: where each started and where it ended."""
    stats: list[dict[str, str | None]] = []
    held_out = run.series("evaluation/success", training=False)
    if not held_out.empty:
        start = _percent(held_out.iloc[0]) if len(held_out) > 1 else None
        stats.append({"label": "Held-out success", "start": start, "end": _percent(held_out.iloc[-1])})
    for label, metric, form in _STATS:
        series = run.series(metric)
        if not series.empty:
            width = min(WINDOW, max(1, len(series) // 3))
            start = form(series.head(width).mean()) if len(series) > 1 else None
            stats.append({"label": label, "start": start, "end": form(series.tail(width).mean())})
    return stats


def _settings(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The sections of the configuration that say what was run, without the nested ones."""
    sections = ("method", "training", "check", "skill", "advantage", "env", "prompt", "policy", "evaluation", "run")
    return {
        name: {key: value for key, value in config[name].items() if not isinstance(value, dict | list)}
        for name in sections
        if isinstance(config.get(name), dict)
    }


def _figure(chart: Chart) -> dict[str, Any]:
    svg = to_svg(chart.figure, chart.name, f"{chart.title}. {chart.caption}")
    return {"title": chart.title, "caption": chart.caption, "svg": Markup(svg)}


def _asset(name: str) -> str:
    return resources.files("rsipo.report").joinpath("assets", name).read_text(encoding="utf-8")


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)


def _percent(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.1%}"


def _signed(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:+.3f}".replace("-", "−")


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}".replace("-", "−")


_STATS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("Student success", "student/success", _percent),
    ("Teacher success", "teacher/success", _percent),
    ("Replay gain Δ", "check/gain", _signed),
    ("Trust ω", "check/trust", _number),
    ("Valid skills", "skill/valid", _percent),
    ("OPSD loss", "opsd/loss", _number),
)
"""(label, metric, form) of the overview."""
