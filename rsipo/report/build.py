"""Which figures a report has, and its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rsipo.report import breakdowns, figures
from rsipo.report.command import PAGE
from rsipo.report.data import RunData, load_runs
from rsipo.report.figures import Chart
from rsipo.report.page import RunCharts, render
from rsipo.report.style import figure_style, to_png

SHARED: tuple[Callable[[Sequence[RunData]], Chart | None], ...] = (
    figures.success,
    figures.opsd_loss,
    figures.trust,
    figures.held_out,
    figures.gain,
    breakdowns.phases,
    breakdowns.ablation,
)
"""Figures with all runs in one panel."""

SINGLE: tuple[Callable[[RunData], Chart | None], ...] = (
    figures.teacher_by_success,
    figures.teacher_over_training,
    breakdowns.funnel,
    breakdowns.categories,
    breakdowns.category_gain,
    breakdowns.gain_by_type,
    breakdowns.type_means,
    breakdowns.trust_by_type,
)
"""Figures of one run."""

Progress = Callable[[str, int, "int | None"], None]
"""(what is done now, how many parts are done, of how many)."""


def build_report(roots: Sequence[Path], progress: Progress = lambda *_: None) -> dict[str, bytes]:
    """The files of a report by name: the page and the PNGs. Raises UserError as ``load_runs`` does."""
    runs = load_runs(roots, lambda name: progress(f"reading {name}", 0, None))
    parts = len(SHARED) + len(SINGLE) * len(runs)
    with figure_style():
        done = iter(range(parts))

        def drawn(charts: Iterable[Chart | None]) -> Iterator[Chart]:
            for chart in charts:
                progress("drawing", next(done), parts)
                if chart is not None:
                    yield chart

        shared = list(drawn(draw(runs) for draw in SHARED))
        single = []
        for number, run in enumerate(runs, start=1):
            prefix = f"run-{number}-" if len(runs) > 1 else ""
            charts = [chart.prefixed(prefix) for chart in drawn(draw(run) for draw in SINGLE)]
            single.append(RunCharts(run, charts))
        progress("writing", parts, parts)
        page = render(shared, single)
        everything = [*shared, *(chart for entry in single for chart in entry.charts)]
        images = {f"{chart.name}.png": to_png(chart.figure, chart.title) for chart in everything}
    return {PAGE: page.encode(), **images}
