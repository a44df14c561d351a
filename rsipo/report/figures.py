"""The figures of a report. Each function draws one panel from one or several runs, or returns None without data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
from matplotlib.figure import Figure

from rsipo.report.data import RunData
from rsipo.report.style import WINDOW, color, legend, line_style, panel, series_style, share_axis, step_axis

Runs = Sequence[RunData]


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure with the words around it. ``name`` is the PNG's name without suffix, unique within a report."""

    name: str
    title: str
    caption: str
    figure: Figure

    def prefixed(self, prefix: str) -> Chart:
        """The same chart under a longer name."""
        return replace(self, name=prefix + self.name)


# ---------------------------------------------------------------------- over training, all runs in one panel


def success(runs: Runs) -> Chart | None:
    """Success of the student's rollouts, and for one run of the replays with the skill as well (Fig. 4a, 6)."""
    curves = [(run.name, run.series("student/success")) for run in runs]
    caption = f"Success rate of the rollouts in training. Thin: each step; thick: mean of the last {WINDOW} steps."
    if len(runs) == 1:
        curves = [
            ("student", runs[0].series("student/success")),
            ("teacher (replays with the skill)", runs[0].series("teacher/success")),
        ]
    return _curves("success", "Success in training", caption, curves, percent=True)


def held_out(runs: Runs) -> Chart | None:
    """Success on the held-out panel, without a skill in the prompt."""
    curves = [(run.name, run.series("evaluation/success", training=False)) for run in runs]
    curves = [(name, series) for name, series in curves if not series.empty]
    if not curves:
        return None
    figure, axes = panel()
    for index, (name, series) in enumerate(curves):
        axes.plot(series.index, series, marker="o", markersize=5, label=name, **series_style(index))
    share_axis(axes)
    step_axis(axes)
    legend(axes, len(runs))
    return Chart(
        "held-out", "Success on held-out tasks", "The evaluation panel, student alone, no skill in the prompt.", figure
    )


def opsd_loss(runs: Runs) -> Chart | None:
    """The distillation loss before its coefficient, eq. (12)."""
    curves = [(run.name, run.series("opsd/loss")) for run in runs]
    caption = "The distillation term before its coefficient, eq. (12), per response token."
    return _curves("opsd-loss", "OPSD loss", caption, curves)


def trust(runs: Runs) -> Chart | None:
    """Mean trust of the tasks; for one run with its spread over them."""
    curves = [(run.name, run.series("check/trust")) for run in runs]
    caption = "Mean trust ω, eq. (11). Above one the teacher's word counts more than in plain distillation."
    chart = _curves("trust", "Trust", caption, curves, reference=1.0)
    if chart is not None and len(runs) == 1:
        low, high = (runs[0].series(f"check/trust_p{share}") for share in (10, 90))
        chart.figure.axes[0].fill_between(low.index, low, high, color=color("series-1"), alpha=0.14, linewidth=0)
        caption += " Shaded: the middle 80% of the step's tasks."
    return None if chart is None else replace(chart, caption=caption)


def gain(runs: Runs) -> Chart | None:
    """Mean replay gain of the tasks, eq. (5)."""
    curves = [(run.name, run.series("check/gain")) for run in runs]
    caption = "Mean replay gain Δ, eq. (5): utility of the replays with the skill minus that of the control rollouts."
    return _curves("gain", "Replay gain", caption, curves, reference=0.0)


# ---------------------------------------------------------------------- teacher against student, one run


def teacher_by_success(run: RunData) -> Chart | None:
    """Share of tasks on which the teacher succeeds more or less often, by the student's other successes (Fig. 2b)."""
    compared = run.tasks.dropna(subset=["teacher"])
    if compared.empty:
        return None
    groups = compared.groupby("evidence_successes")["teacher"]
    numbers = groups.size()
    figure, axes = panel()
    for offset, name, label in ((-0.2, "more", "teacher more often"), (0.2, "less", "teacher less often")):
        shares = groups.apply(lambda answers, name=name: (answers == name).mean())
        bars = axes.bar(numbers.index + offset, shares, 0.38, color=_SIDE[name], label=label)
        axes.bar_label(bars, [f"{share:.0%}" for share in shares], padding=2, fontsize=8, color=color("muted"))
    axes.set_xticks(numbers.index, [f"{wins}\n({count})" for wins, count in numbers.items()])
    axes.set_xlabel("student's successes among the evidence rollouts (tasks)")
    share_axis(axes, "share of tasks", top=None)
    axes.margins(y=0.15)
    axes.grid(visible=False, axis="x")
    legend(axes, 2)
    caption = (
        "Replays with the skill against control rollouts without, grouped by the successes of the evidence rollouts: "
        "these take no part in the comparison, so that grouping by them does not favour a side."
    )
    return Chart("teacher-by-success", "Teacher against student, by competence", caption, figure)


def teacher_over_training(run: RunData) -> Chart | None:
    """The same shares over training, in blocks of steps (Fig. 2c)."""
    compared = run.tasks.dropna(subset=["teacher"])
    if compared.empty:
        return None
    width = block_width(int(run.tasks["step"].max()))
    groups = compared.groupby((compared["step"] - 1) // width)["teacher"]
    figure, axes = panel()
    for name, label in (("more", "teacher more often"), ("less", "teacher less often")):
        shares = groups.apply(lambda answers, name=name: (answers == name).mean())
        axes.plot(shares.index * width + (width + 1) / 2, shares, "-o", markersize=4, color=_SIDE[name], label=label)
    share_axis(axes, "share of tasks", top=None)
    axes.set_ylim(bottom=0)
    step_axis(axes)
    legend(axes, 2)
    caption = (
        "Share of tasks on which replays with the skill succeed more or less often than control rollouts, "
        f"in blocks of {width} steps."
    )
    return Chart("teacher-over-training", "Teacher against student, over training", caption, figure)


def block_width(steps: int) -> int:
    """Steps per block: the paper's 15 of 150, fewer in a short run so that it has about ten blocks."""
    return min(15, max(1, math.ceil(steps / 10)))


_SIDE = {"more": color("better"), "less": color("worse")}


# ---------------------------------------------------------------------- shared parts


def _curves(
    name: str,
    title: str,
    caption: str,
    curves: Sequence[tuple[str, pd.Series]],
    *,
    percent: bool = False,
    reference: float | None = None,
) -> Chart | None:
    """Thin lines of the steps and thick moving averages, one colour per curve; None when all curves are empty."""
    if all(series.empty for _, series in curves):
        return None
    figure, axes = panel()
    if reference is not None:
        axes.axhline(reference, color=color("muted"), linewidth=1, linestyle=(0, (4, 3)))
    for index, (label, series) in enumerate(curves):
        if not series.empty:
            style = line_style(index, len(series))
            axes.plot(series.index, series, color=style["color"], linewidth=0.9, alpha=0.45)
            axes.plot(series.index, moving_average(series), label=label, **style)
    if percent:
        share_axis(axes)
    step_axis(axes)
    legend(axes, len(curves))
    return Chart(name, title, caption, figure)


def moving_average(series: pd.Series) -> pd.Series:
    """Mean of the last ten steps, of fewer at the start."""
    return series.rolling(WINDOW, min_periods=1).mean()
