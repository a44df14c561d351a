"""Figures and tables that break a run down: skill categories, task types, the funnel, time; and runs beside each other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rsipo.report.categories import CATEGORIES
from rsipo.report.data import STAGES, RunData
from rsipo.report.figures import Chart, Runs, moving_average
from rsipo.report.style import SIZE, WINDOW, color, legend, line_style, panel, series_style, share_axis, step_axis

PHASES = ("rollouts", "log_probs", "teacher", "update", "weight_sync", "evaluation", "checkpoint")
"""In the order of a step."""

COMPONENTS = {
    "teacher": ("distillation", "none"),
    "dynamic trust": ("trust", "one"),
    "skill evolution": ("skill_reward", "none"),
}
"""Part of a method -> (its setting, the value that switches it off)."""

Row = dict[str, Any]


def categories(run: RunData) -> Chart | None:
    """Share of the skills in each category over training (Fig. 5)."""
    skills = run.tasks[run.tasks["parsed"]]
    if skills.empty:
        return None
    shares = skills.groupby("step")[list(CATEGORIES)].mean()
    shares["other"] = (~skills[list(CATEGORIES)].any(axis=1)).groupby(skills["step"]).mean()
    figure, axes = panel()
    for index, name in enumerate([*CATEGORIES, "other"]):
        style = line_style(index, len(shares))
        if name not in CATEGORIES:
            style |= {"color": color("muted"), "linestyle": "--"}
        axes.plot(shares.index, shares[name], color=style["color"], linewidth=0.9, alpha=0.45)
        axes.plot(shares.index, moving_average(shares[name]), label=name.capitalize(), **style)
    share_axis(axes, "share of skills")
    step_axis(axes)
    legend(axes, 4)
    caption = (
        "Checked skills by keyword; a skill may be in several categories. Procedure: numbered or counted steps. Format: "
        f"action syntax. Recovery: what to do when nothing happens. Thick: mean of {WINDOW} steps."
    )
    return Chart("skill-categories", "What the skills are about", caption, figure)


def category_gain(run: RunData) -> Chart | None:
    """Mean gain of each category's skills, with 95% intervals."""
    rows = [row for row in category_rows(run) if row["measured"]]
    if not rows:
        return None
    figure, axes = _rows_panel([row["category"] for row in rows], reference=0.0)
    _intervals(axes, rows)
    axes.set_xlabel("mean replay gain Δ")
    caption = "Mean replay gain of the skills in a category, with its 95% interval."
    return Chart("category-gain", "Gain by category", caption, figure)


def category_rows(run: RunData) -> list[Row]:
    """Per category: number of skills, share, mean gain, half width of its 95% interval; NaN where nothing was measured."""
    skills = run.tasks[run.tasks["parsed"]]
    if skills.empty:
        return []
    members = {name: skills[skills[name]] for name in CATEGORIES}
    members["other"] = skills[~skills[list(CATEGORIES)].any(axis=1)]
    return [
        {"category": name.capitalize(), "skills": len(rows), "share": len(rows) / len(skills), **_mean_gain(rows)}
        for name, rows in members.items()
    ]


def type_rows(run: RunData) -> list[Row]:
    """Per task type: tasks, success of control rollouts and replays, mean gain, shrunk gain, trust."""
    rows = []
    for name, group in run.tasks.groupby("task_type"):
        means = group[["control_rate", "replay_rate", "shrunk_gain", "trust"]].mean()
        rows.append({"type": name, "tasks": len(group), **means.to_dict(), **_mean_gain(group)})
    return rows


def gain_by_type(run: RunData) -> Chart | None:
    """Mean measured gain of each type, with 95% intervals, and the mean shrunk gain."""
    rows = type_rows(run)
    if not any(row["measured"] for row in rows):
        return None
    figure, axes = _rows_panel([row["type"] for row in rows], reference=0.0)
    _intervals(axes, rows, label="measured Δ")
    shrunk = [row["shrunk_gain"] for row in rows]
    axes.plot(shrunk, range(len(rows)), "D", color=color("series-2"), markersize=5, label="shrunk ĝ")
    axes.set_xlabel("mean gain")
    legend(axes, 2)
    caption = (
        "Mean replay gain Δ of the type's tasks with its 95% interval, and the mean of the shrunk gain ĝ, eq. (7)."
    )
    return Chart("gain-by-type", "Gain per task type", caption, figure)


def type_means(run: RunData) -> Chart | None:
    """The prior mean of each type over training: the gain a skill of that type is expected to bring, eq. (6)."""
    if run.tasks["type_mean"].isna().all():
        return None
    figure, axes = panel()
    axes.axhline(0.0, color=color("muted"), linewidth=1, linestyle=(0, (4, 3)))
    names = sorted(run.tasks["task_type"].unique())
    for index, name in enumerate(names):
        means = run.tasks[run.tasks["task_type"] == name].groupby("step")["type_mean"].first()
        axes.plot(means.index, means, linewidth=1.8, label=short(name, 22), **line_style(index, len(means)))
    step_axis(axes)
    figure.legend(loc="outside upper left", ncols=2, fontsize=8.5, handlelength=1.4)
    caption = "Moving average of the replay gain of each task type, eq. (6), as it was in the steps that had the type."
    return Chart("type-means", "Type means over training", caption, figure)


def trust_by_type(run: RunData) -> Chart | None:
    """Distribution of the trust within each type."""
    groups = [(name, group["trust"].dropna()) for name, group in run.tasks.groupby("task_type")]
    groups = [(name, trust) for name, trust in groups if not trust.empty]
    if not groups:
        return None
    figure, axes = _rows_panel([name for name, _ in groups], reference=1.0)
    for place, (_, trust) in enumerate(groups):
        low, middle, high = trust.quantile([0.1, 0.5, 0.9])
        axes.plot([low, high], [place, place], color=color("series-1"), linewidth=5, alpha=0.35)
        axes.plot(middle, place, "o", color=color("series-1"), markersize=7)
    axes.set_xlabel("trust ω")
    caption = "Median trust of the type's tasks over the whole run, and the range of the middle 80%."
    return Chart("trust-by-type", "Trust per task type", caption, figure)


def funnel(run: RunData) -> Chart | None:
    """How many tasks get how far in the execution check."""
    rows = funnel_rows(run)
    if not rows:
        return None
    figure, axes = _rows_panel([row["stage"] for row in rows])
    shares = [row["share"] for row in rows]
    axes.barh(range(len(rows)), shares, color=color("series-1"), height=0.7)
    for place, row in enumerate(rows):
        axes.text(row["share"] + 0.015, place, f"{row['count']:,} · {row['share']:.0%}", va="center", fontsize=8.5)
    axes.set_xlim(0, 1.3)
    axes.xaxis.set_visible(False)
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    caption = (
        "Rollouts that were not lost, then tasks: with usable evidence, a skill that could be read, a valid one, a finished "
        "replay, replays that all began in the initial state, and a reward by their gain (an invalid skill is only penalised)."
    )
    return Chart("funnel", "From rollouts to rewards", caption, figure)


def funnel_rows(run: RunData) -> list[Row]:
    """Stage, count, and share of what could have got there; empty without tasks."""
    tasks = run.tasks
    if tasks.empty:
        return []
    names = dict(
        zip(STAGES, ("evidence", "skill parsed", "skill valid", "replayed", "state matched", "rewarded"), strict=True)
    )
    counts = [("usable rollouts", int(tasks["usable"].sum()), int(tasks["rollouts"].sum()))]
    counts += [(label, int(tasks[stage].sum()), len(tasks)) for stage, label in names.items()]
    return [{"stage": stage, "count": count, "share": count / max(1, total)} for stage, count, total in counts]


# ---------------------------------------------------------------------- all runs


def phases(runs: Runs) -> Chart | None:
    """Mean seconds of a step by phase, per run."""
    rows = [(run.name, phase_seconds(run)) for run in runs]
    rows = [(name, seconds) for name, seconds in rows if seconds]
    if not rows:
        return None
    figure, axes = _rows_panel([name for name, _ in rows], lowest=1.9)
    left = np.zeros(len(rows))
    for index, phase in enumerate(_ordered({phase for _, seconds in rows for phase in seconds})):
        widths = np.array([seconds.get(phase, 0.0) for _, seconds in rows])
        axes.barh(
            range(len(rows)),
            widths,
            left=left,
            height=0.6,
            color=_PHASE_COLORS[index % len(_PHASE_COLORS)],
            label=phase,
        )
        left += widths
    axes.set_xlabel("seconds per step")
    figure.legend(loc="outside upper left", ncols=4, fontsize=8.5, handlelength=0.9, columnspacing=0.9)
    caption = (
        "Mean wall time of a training step by phase. Skills and execution check run within the rollouts; evaluations and "
        "checkpoints are spread over all steps."
    )
    return Chart("phases", "Where the time goes", caption, figure)


def phase_seconds(run: RunData) -> dict[str, float]:
    """Mean seconds per training step of each phase; a phase that a step does not have counts as zero."""
    steps = run.steps
    names = [name for name in steps if name.startswith("seconds/")]
    means = {name.removeprefix("seconds/"): float(steps[name].fillna(0.0).mean()) for name in names}
    return {phase: means[phase] for phase in _ordered(means) if means[phase] > 0}


def ablation(runs: Runs) -> Chart | None:
    """Final success of several runs as bars, above dots that mark each method's components (Fig. 4b)."""
    finals = [(run, final_success(run)) for run in runs]
    finals = [(run, value) for run, value in finals if value is not None]
    if len(finals) < 2:
        return None
    places = range(len(finals))
    figure = Figure(figsize=(SIZE[0], 3.8), layout="constrained")
    axes, dots = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    bars = axes.bar(places, [value for _, value in finals], 0.62)
    for place, bar in enumerate(bars):
        bar.set_color(series_style(place)["color"])
    axes.bar_label(bars, [f"{value:.1%}" for _, value in finals], padding=2, fontsize=8.5)
    share_axis(axes, "success", top=1.1)
    for row, (setting, off) in enumerate(COMPONENTS.values()):
        for place, (run, _) in enumerate(finals):
            value = run.config.get("method", {}).get(setting)
            used = value is not None and value != off
            dots.plot(place, row, "o", markersize=7, color=color("ink" if used else "grid"))
    _name_rows(dots, list(COMPONENTS))
    dots.spines[:].set_visible(False)
    for part in (axes, dots):
        part.grid(visible=False, axis="x")
        part.tick_params(length=0)
    slanted = {"rotation": 20, "ha": "right"} if len(finals) > 3 else {}
    dots.set_xticks(places, [short(run.name) for run, _ in finals], **slanted)
    caption = (
        "Success in the last evaluation on the held-out panel; of a run without one, in the rollouts of its last "
        f"{WINDOW} steps. Dots: the method's components."
    )
    return Chart("ablation", "Final success", caption, figure)


def final_success(run: RunData) -> float | None:
    """Success in the last evaluation; without one, of the last ten steps' rollouts."""
    held_out = run.series("evaluation/success", training=False)
    if not held_out.empty:
        return float(held_out.iloc[-1])
    student = run.series("student/success")
    return None if student.empty else float(student.tail(WINDOW).mean())


# ---------------------------------------------------------------------- shared parts

_PHASE_COLORS = [
    color(name) for name in ("series-1", "series-3", "series-2", "series-4", "series-6", "series-5", "muted")
]


def _ordered(names: Iterable[str]) -> list[str]:
    """Known phases in the order of a step, then the others."""
    return sorted(names, key=lambda name: (PHASES.index(name) if name in PHASES else len(PHASES), name))


def _mean_gain(rows: pd.DataFrame) -> Row:
    """Mean gain over the tasks that have one, and the half width of its 95% interval (normal approximation)."""
    gains = rows["gain"].dropna()
    spread = gains.std(ddof=1) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
    return {"measured": len(gains), "gain": gains.mean() if len(gains) else math.nan, "half_width": 1.96 * spread}


def _intervals(axes: Axes, rows: list[Row], label: str | None = None) -> None:
    """A point and its interval per row."""
    means, widths = ([row[name] for row in rows] for name in ("gain", "half_width"))
    axes.errorbar(
        means,
        range(len(rows)),
        xerr=np.nan_to_num(widths),
        fmt="o",
        color=color("series-1"),
        markersize=6,
        elinewidth=2,
        label=label,
    )


def _rows_panel(names: list[str], *, reference: float | None = None, lowest: float = SIZE[1]) -> tuple[Figure, Axes]:
    """A panel with a named row for each of ``names``, at least ``lowest`` inches high."""
    figure, axes = panel(height=max(lowest, 0.9 + 0.34 * len(names)))
    if reference is not None:
        axes.axvline(reference, color=color("muted"), linewidth=1, linestyle=(0, (4, 3)))
    _name_rows(axes, names)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    return figure, axes


def _name_rows(axes: Axes, names: list[str]) -> None:
    """The first name on top."""
    axes.set_yticks(range(len(names)), [short(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def short(name: str, limit: int = 26) -> str:
    """A name that fits beside a panel; the middle of a longer one is left out."""
    half = (limit - 1) // 2
    return name if len(name) <= limit else f"{name[:half]}…{name[-half:]}"
