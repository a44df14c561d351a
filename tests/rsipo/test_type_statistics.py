from __future__ import annotations

import json

import pytest

from rsipo.type_statistics import TypeMoments, TypeStatistics


def test_eq6_by_hand_over_two_batches():
    statistics = TypeStatistics(0.1)
    statistics.commit(statistics.stage({"heat": [(0.4, 0.05), (0.2, 0.03)]}))
    assert statistics.of("heat") == TypeMoments(*(pytest.approx(x) for x in (0.03, 0.01, 0.004, 0.1)))
    staged = statistics.stage({"heat": [(-0.5, 0.1)]})
    expected = (0.9 * 0.03 - 0.05, 0.9 * 0.01 + 0.025, 0.9 * 0.004 + 0.01, 0.19)
    assert staged.of("heat") == TypeMoments(*(pytest.approx(x) for x in expected))


def test_variance_is_total_minus_noise_and_never_negative():
    assert TypeMoments(0.02, 0.03, 0.004, 0.1).variance == pytest.approx(0.3 - 0.04 - 0.04)
    assert TypeMoments(0.02, 0.005, 0.004, 0.1).variance == 0.0


def test_staging_changes_nothing_until_commit():
    statistics = TypeStatistics(0.1)
    before = statistics.state_dict()
    staged = statistics.stage({"cool": [(0.3, 0.05)]})
    assert statistics.state_dict() == before
    assert staged.of("cool").mean == pytest.approx(0.3)
    assert statistics.of("cool") == TypeMoments()
    statistics.commit(staged)
    assert statistics.of("cool") == staged.of("cool")
    assert statistics.version == 1


def test_types_without_a_gain_keep_their_moments():
    statistics = TypeStatistics(0.1)
    statistics.commit(statistics.stage({"cool": [(0.3, 0.05)], "heat": []}))
    statistics.commit(statistics.stage({"heat": [(0.1, 0.05)]}))
    assert statistics.of("cool").weight == pytest.approx(0.1)
    assert statistics.version == 2


def test_stale_staging_is_refused():
    statistics = TypeStatistics(0.1)
    staged = statistics.stage({"cool": [(0.3, 0.05)]})
    statistics.commit(staged)
    with pytest.raises(RuntimeError, match="version 0, but version 1"):
        statistics.commit(staged)


def test_state_survives_json_and_continues_alike():
    one = TypeStatistics(0.1)
    for gain in (0.3, -0.2, 0.123456789012345):
        one.commit(one.stage({"cool": [(gain, 0.05)], "heat": [(gain / 3, 0.01)]}))
    two = TypeStatistics(0.1)
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert two.state_dict() == one.state_dict()
    step = {"cool": [(0.7, 0.02)]}
    assert two.stage(step) == one.stage(step)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"version": 1},
        {"version": 1, "types": {"cool": {"gain": 0.1}, "heat": {"mean": 1}}},
        {"version": 1, "types": {"cool": {"gain": 0.1, "gain_squared": 0.1, "noise_variance": 0.1, "weight": 3}}},
        {"version": 1, "types": {"cool": {"gain": float("nan"), "weight": 0.1}}},
    ],
)
def test_damaged_state_is_refused_and_changes_nothing(state):
    statistics = TypeStatistics(0.1)
    statistics.commit(statistics.stage({"cool": [(0.3, 0.05)]}))
    before = statistics.state_dict()
    with pytest.raises(ValueError, match="type statistics"):
        statistics.load_state_dict(state)
    assert statistics.state_dict() == before


def test_eta_must_be_a_rate():
    with pytest.raises(ValueError, match="eta=0"):
        TypeStatistics(0)
