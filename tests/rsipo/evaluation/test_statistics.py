"""Means, spreads and intervals against hand-computed values and the plain bootstrap."""

from __future__ import annotations

import numpy as np
import pytest

from rsipo.evaluation.statistics import estimate


def test_mean_and_spread_are_those_of_the_rounds() -> None:
    outcomes = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]], dtype=float)
    found = estimate(outcomes, "valid_seen")
    assert found.rounds == (0.75, 0.5, 0.25)
    assert found.mean == 0.5
    assert found.std == pytest.approx(0.25)  # divided by the rounds less one
    low, high = found.interval
    assert 0 <= low < 0.5 < high <= 1


def test_one_round_has_no_spread_but_an_interval() -> None:
    found = estimate(np.array([[1.0], [0.0], [0.0], [1.0]] * 10), "test")
    assert found.std is None
    assert found.interval == pytest.approx((0.35, 0.65), abs=0.03)  # 0.5 ± 1.96 · sqrt(0.25 / 40)


def test_the_interval_is_that_of_resampled_tasks_not_of_resampled_episodes() -> None:
    """Tasks that go the same way in every round are as informative as one round of them."""
    once = np.repeat([[1.0], [0.0]], 30, axis=0)
    thrice = np.repeat(once, 3, axis=1)
    wide, narrow = estimate(once, "a").interval, estimate(thrice, "a").interval
    assert wide == narrow
    rates = once[:, 0]
    plain = np.random.default_rng(1).choice(rates, size=(10_000, len(rates))).mean(axis=1)
    assert wide == pytest.approx(tuple(np.quantile(plain, [0.025, 0.975])), abs=0.02)


def test_the_interval_depends_on_nothing_but_the_outcomes_and_the_name() -> None:
    outcomes = np.random.default_rng(0).integers(0, 2, size=(50, 3)).astype(float)
    assert estimate(outcomes, "a") == estimate(outcomes.copy(), "a")
    shuffled = np.random.default_rng(2).permutation(outcomes)
    assert estimate(shuffled, "a").interval == estimate(outcomes, "a").interval


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_equal_tasks_leave_no_width(rate: float) -> None:
    found = estimate(np.full((5, 3), rate), "a")
    assert (found.mean, found.std, found.interval) == (rate, 0.0, (rate, rate))


def test_nothing_cannot_be_averaged() -> None:
    with pytest.raises(ValueError, match="not empty"):
        estimate(np.zeros((0, 3)), "a")
