from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from rsipo.report import breakdowns, figures
from rsipo.report.build import SHARED, SINGLE
from rsipo.report.data import RunData, load_run
from rsipo.report.style import PALETTE, figure_style, to_png, to_svg


@pytest.fixture(scope="module")
def run(small_run: Path) -> RunData:
    return load_run(small_run)


def heights(figure) -> list[float]:
    return [bar.get_height() for bar in figure.axes[0].patches]


def test_teacher_against_student_is_counted_from_the_records(run: RunData) -> None:
    with figure_style():
        chart = figures.teacher_by_success(run)
    expected = {}
    for record in run.records:
        if record.gain is None:
            continue
        usable = [r for r in record.rollouts if r.status == "ok"]
        wins = sum(r.success for r in usable if r.role == "evidence")
        control = [r.success for r in usable if r.role == "control"]
        replays = [r.success for r in record.replays if r.status == "ok"]
        difference = sum(replays) / len(replays) - sum(control) / len(control)
        expected.setdefault(wins, []).append(difference)
    more = [sum(d > 1e-12 for d in expected[wins]) / len(expected[wins]) for wins in sorted(expected)]
    less = [sum(d < -1e-12 for d in expected[wins]) / len(expected[wins]) for wins in sorted(expected)]
    assert heights(chart.figure) == pytest.approx(more + less)
    labels = [label.get_text() for label in chart.figure.axes[0].get_xticklabels()]
    assert labels == [f"{wins}\n({len(expected[wins])})" for wins in sorted(expected)]


@pytest.mark.parametrize(("steps", "width"), [(1, 1), (12, 2), (60, 6), (150, 15), (1000, 15)])
def test_blocks_are_the_papers_in_a_run_as_long(steps: int, width: int) -> None:
    assert figures.block_width(steps) == width


def test_moving_averages_look_back_ten_steps() -> None:
    averages = figures.moving_average(pd.Series(range(20), dtype=float))
    assert averages.iloc[0] == 0
    assert averages.iloc[1] == 0.5
    assert averages.iloc[19] == 14.5


def test_the_funnel_counts_and_narrows(run: RunData) -> None:
    rows = breakdowns.funnel_rows(run)
    assert [row["stage"] for row in rows] == (
        ["usable rollouts", "evidence", "skill parsed", "skill valid", "replayed", "state matched", "rewarded"]
    )
    assert rows[0]["count"] == sum(r.status == "ok" for record in run.records for r in record.rollouts)
    counts = [row["count"] for row in rows[1:]]
    assert counts == sorted(counts, reverse=True)
    assert rows[-1]["count"] <= sum(record.gain is not None for record in run.records)


def test_rows_of_types_and_categories_agree_with_the_tasks(run: RunData) -> None:
    types = breakdowns.type_rows(run)
    assert sum(row["tasks"] for row in types) == 60
    gains = run.tasks["gain"].dropna()
    assert sum(row["gain"] * row["measured"] for row in types if row["measured"]) == pytest.approx(gains.sum())
    categories = breakdowns.category_rows(run)
    assert [row["category"] for row in categories] == ["Procedure", "Format", "Recovery", "Other"]
    assert sum(row["skills"] for row in categories) >= run.tasks["parsed"].sum()


def test_phases_come_in_the_order_of_a_step_and_spread_over_all_steps(run: RunData) -> None:
    seconds = breakdowns.phase_seconds(run)
    assert list(seconds) == ["rollouts", "log_probs", "teacher", "update", "weight_sync", "evaluation"]
    assert seconds["evaluation"] == pytest.approx(60.0)  # a run of six steps is evaluated after each


def test_the_last_evaluation_is_final_else_the_last_rollouts(run: RunData, plain_run: Path) -> None:
    assert breakdowns.final_success(run) == pytest.approx(0.9)
    assert breakdowns.final_success(load_run(plain_run)) == pytest.approx(0.25)


def test_every_figure_draws_or_has_a_reason_not_to(run: RunData, plain_run: Path) -> None:
    plain = load_run(plain_run)
    with figure_style():
        assert [draw.__name__ for draw in SHARED if draw([run]) is None] == ["ablation"]
        assert [draw.__name__ for draw in SHARED if draw([run, plain]) is None] == []
        assert [draw.__name__ for draw in SINGLE if draw(run) is None] == []
        assert [draw.__name__ for draw in SHARED if draw([plain]) is not None] == ["success", "phases"]
        assert [draw.__name__ for draw in SINGLE if draw(plain) is not None] == []


def test_an_inlined_figure_follows_the_page_and_keeps_its_ids_to_itself(run: RunData) -> None:
    with figure_style():
        chart = figures.success([run])
        svg = to_svg(chart.figure, "one", 'a "label" & <more>')
        other = to_svg(chart.figure, "two", "label")
        again = to_svg(figures.success([run]).figure, "one", 'a "label" & <more>')
        png = to_png(chart.figure, chart.title)
    assert svg.startswith("<svg ")
    assert 'aria-label="a &quot;label&quot; &amp; &lt;more&gt;"' in svg
    assert "var(--series-1)" in svg
    assert not [light for light, _ in PALETTE.values() if light in svg]
    assert not re.search(r'\b(?:width|height)="\d+(?:\.\d+)?pt"', svg)
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (svg, other)]
    assert not ids[0] & ids[1]
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= ids[0]
    assert svg == again
    assert png.startswith(b"\x89PNG")


def test_the_palette_is_told_apart_in_both_themes() -> None:
    for theme in (0, 1):
        colors = [colors[theme] for colors in PALETTE.values()]
        assert len(set(colors)) == len(colors)
