"""What a number of rounds over a panel says: mean over rounds, standard deviation, and an interval by cluster bootstrap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent_system.rollout.seeds import derive_seed

RESAMPLES = 10_000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A success rate.

    Attributes:
        mean: over rounds (equal to the mean over all episodes: every round plays every task).
        std: sample standard deviation of the rounds' rates; None with a single round.
        interval: ends of the 95 % interval.
        rounds: each round's rate.
    """

    mean: float
    std: float | None
    interval: tuple[float, float]
    rounds: tuple[float, ...]


def estimate(outcomes: np.ndarray, *seed_parts: int | str) -> Estimate:
    """Mean, spread and interval of ``outcomes`` (float [tasks, rounds], 1 for a success).

    The interval is the percentile interval of a cluster bootstrap: tasks are resampled, each with all its rounds, because
    episodes of one task are alike. It covers the choice of tasks and of random numbers, not another training run. Where
    every task has the same rate it has no width.

    Args:
        seed_parts: name what is measured, so that the resampling is the same whenever it is computed.

    Raises:
        ValueError: there is nothing to average.
    """
    if outcomes.ndim != 2 or not outcomes.size:
        raise ValueError(f"outcomes must be [tasks, rounds] and not empty, got shape {outcomes.shape}")
    rates = outcomes.mean(axis=0)
    return Estimate(
        mean=float(rates.mean()),
        std=float(rates.std(ddof=1)) if len(rates) > 1 else None,
        interval=_bootstrap_interval(outcomes.mean(axis=1), derive_seed("bootstrap", *seed_parts)),
        rounds=tuple(float(rate) for rate in rates),
    )


def _bootstrap_interval(task_rates: np.ndarray, seed: int) -> tuple[float, float]:
    """Percentile interval of the mean of ``task_rates`` (float [tasks]).

    Drawing tasks with replacement and counting how often each distinct rate comes up is one multinomial draw.
    """
    values, counts = np.unique(task_rates, return_counts=True)
    draws = np.random.default_rng(seed).multinomial(len(task_rates), counts / len(task_rates), size=RESAMPLES)
    means = draws @ values / len(task_rates)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
