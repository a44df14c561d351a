"""Health alarms, each with numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from rsipo.configuration import compose_run
from rsipo.health import HealthMonitor
from rsipo.run_settings import HealthSection, RunSettings


def settings(**changes: Any) -> HealthSection:
    values: dict[str, Any] = {
        "action": "warn",
        "window": 4,
        "min_steps": 3,
        "grad_norm_ratio": 10,
        "grad_norm_floor": 1.0,
        "entropy_ratio": 4,
        "response_length_ratio": 3,
        "log_prob_gap": 0.1,
        "success_drop": 0.5,
        "success_window": 2,
    }
    return HealthSection(**values | changes)


def step(**changes: float) -> dict[str, float]:
    values = {"norm": 0.4, "entropy": 1.0, "length": 20.0, "gap": 0.01, "success": 0.5} | changes
    return {
        "update/grad_norm": values["norm"],
        "update/grad_norm_max": values["norm"],
        "ppo/entropy": values["entropy"],
        "length/response_mean": values["length"],
        "rollout/log_prob_gap_mean": values["gap"],
        "student/success": values["success"],
    }


def names(monitor: HealthMonitor, metrics: dict[str, float]) -> list[str]:
    return [alarm.name for alarm in monitor.observe(metrics)]


def test_a_usual_step_raises_none() -> None:
    monitor = HealthMonitor(settings())
    assert all(names(monitor, step()) == [] for _ in range(10))


@pytest.mark.parametrize(
    ("change", "alarm"),
    [
        # The medians are those of step(): norm 0.4 (ten times it is 4), entropy 1, length 20.
        ({"norm": 4.1}, "grad_norm"),
        ({"norm": float("inf")}, "grad_norm"),
        ({"norm": float("nan")}, "grad_norm"),
        ({"entropy": 0.24}, "entropy"),
        ({"entropy": 4.1}, "entropy"),
        ({"length": 61.0}, "response_length"),
        ({"length": 6.6}, "response_length"),
        ({"gap": 0.11}, "log_prob_gap"),
    ],
)
def test_what_is_beyond_its_threshold_is_named(change: dict[str, float], alarm: str) -> None:
    assert names(HealthMonitor(settings(), [step()] * 3), step(**change)) == [alarm]


@pytest.mark.parametrize(
    "change", [{"norm": 3.9}, {"entropy": 0.26}, {"entropy": 3.9}, {"length": 59.0}, {"length": 6.7}, {"gap": 0.1}]
)
def test_what_is_within_is_not(change: dict[str, float]) -> None:
    assert names(HealthMonitor(settings(), [step()] * 3), step(**change)) == []


def test_nothing_is_compared_before_there_are_enough_steps() -> None:
    assert names(HealthMonitor(settings(), [step()] * 2), step(norm=100, entropy=0.001, length=500)) == []


def test_a_small_gradient_is_never_too_large() -> None:
    monitor = HealthMonitor(settings(), [step(norm=0.001)] * 3)
    assert names(monitor, step(norm=0.9)) == []
    assert names(monitor, step(norm=1.1)) == ["grad_norm"]


def test_the_median_runs_and_one_outlier_does_not_move_it() -> None:
    monitor = HealthMonitor(settings(), [step(norm=0.4)] * 3)
    assert names(monitor, step(norm=50)) == ["grad_norm"]  # remembered: 0.4 0.4 0.4 50, median 0.4
    assert names(monitor, step(norm=50)) == ["grad_norm"]  # 0.4 0.4 50 50, median 25.2
    assert names(monitor, step(norm=50)) == []


def test_success_that_halves_is_a_collapse() -> None:
    # Means of two: 0.5, 0.6, 0.6, 0.4, and at last 0.25, which is less than half of 0.6.
    monitor = HealthMonitor(settings())
    assert [names(monitor, step(success=rate)) for rate in (0.4, 0.6, 0.6, 0.6, 0.2, 0.3)] == [[]] * 4 + [
        [],
        ["success"],
    ]
    assert names(HealthMonitor(settings(), [step(success=0.09)] * 4), step(success=0.0)) == []


def test_a_resumed_run_judges_like_the_uninterrupted_one() -> None:
    rows = [step(norm=0.1 * number, success=0.1 * number) for number in range(1, 9)] + [step(norm=30, success=0)] * 2
    whole = HealthMonitor(settings())
    expected = [names(whole, row) for row in rows]
    resumed = HealthMonitor(settings(), [{"evaluation/success": 0.5}, *rows[:6]])
    assert [names(resumed, row) for row in rows[6:]] == expected[6:]
    assert any(expected)


def test_an_evaluation_alone_is_no_step() -> None:
    assert HealthMonitor(settings()).observe({"evaluation/success": 0.0}) == []


def test_null_switches_an_alarm_off() -> None:
    off = dict.fromkeys(("grad_norm_ratio", "entropy_ratio", "response_length_ratio", "log_prob_gap", "success_drop"))
    monitor = HealthMonitor(settings(**off), [step()] * 6)
    assert names(monitor, step(norm=1e9, entropy=1e9, length=1e9, gap=9, success=0)) == []


def test_the_default_thresholds_are_read() -> None:
    health = RunSettings.from_config(compose_run(["run.name=x", "policy.path=x"])).health
    assert (health.action, health.window, health.success_drop) == ("warn", 20, 0.5)
