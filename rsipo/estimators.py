"""From raw outcomes of the execution check to skill rewards and trust: eq. (4)-(8) and (11). Plain floats.

Where the paper is silent: a type never seen has prior mean 0, and a task whose gain was not measured (nothing usable,
a state mismatch, every replay or every control lost) gets no skill reward except the penalty of an invalid skill.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rsipo.settings import CheckSettings
from rsipo.type_statistics import GainSample, StagedStatistics, TypeMoments, TypeStatistics


class Played(Protocol):
    """What is needed of an episode. ``status`` other than ``ok``: lost to infrastructure, leaves its group."""

    @property
    def status(self) -> str: ...
    @property
    def success(self) -> bool: ...
    @property
    def turns(self) -> int: ...


@dataclass(frozen=True, slots=True)
class EpisodeOutcome:
    """The plainest ``Played``; audit records of episodes are others."""

    status: str
    success: bool
    turns: int


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """Raw outcome of one task's execution check.

    Attributes:
        control: the control rollouts, lost ones included.
        replays: the teacher episodes, lost ones included; empty where none was started.
        has_evidence: whether there was a trajectory to write a skill from.
        skill_valid: whether the rewritten skill was valid; None without evidence.
        state_matched: False if any replay failed to reproduce the initial state; None where none got that far.
    """

    task_type: str
    control: Sequence[Played]
    replays: Sequence[Played] = ()
    has_evidence: bool = True
    skill_valid: bool | None = None
    state_matched: bool | None = None


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Estimates for one task, None where not defined. The names are those of the audit records."""

    gain: float | None
    noise_variance: float | None
    type_mean: float
    type_variance: float | None
    shrinkage_weight: float | None
    shrunk_gain: float
    skill_reward: float
    trust: float


def utility(success: bool, turns: int, *, alpha: float, max_turns: int) -> float:
    """Eq. (4): 0 for a failure, ``1 - alpha * turns / max_turns`` for a success. Raises ValueError past the limit."""
    if not 0 <= turns <= max_turns:
        raise ValueError(f"an episode of {turns} turns cannot come from a limit of {max_turns}")
    return 1.0 - alpha * turns / max_turns if success else 0.0


def gain(replays: Sequence[float], control: Sequence[float]) -> float:
    """Eq. (5): mean utility of the replays minus that of the control rollouts; both non-empty."""
    return math.fsum(replays) / len(replays) - math.fsum(control) / len(control)


def noise_variance(replays: Sequence[float], control: Sequence[float]) -> float:
    """The sampling variance v of eq. (5), from Laplace-smoothed mean utilities; always positive."""
    total = 0.0
    for utilities in (replays, control):
        count = len(utilities)
        smoothed = (math.fsum(utilities) + 1) / (count + 2)
        total += smoothed * (1 - smoothed) / count
    return total


def shrinkage_weight(variance: float, noise: float) -> float:
    """w of eq. (7), in [0, 1]; 0 where both variances are 0."""
    return variance / (variance + noise) if variance > 0 else 0.0


def shrink(value: float, mean: float, weight: float) -> float:
    """Eq. (7): the posterior mean, between ``mean`` (weight 0) and ``value`` (weight 1)."""
    return weight * value + (1 - weight) * mean


def skill_reward(
    measured: float | None, type_mean: float, *, skill_valid: bool | None, rho: float, format_reward: float
) -> float:
    """Eq. (8): gain centred by the type mean, plus the format reward; ``-rho`` for an invalid skill.

    ``measured`` is the gain, or None; then, as without a skill at all (``skill_valid`` None), the reward is 0.
    """
    if skill_valid is False:
        return -rho
    if not skill_valid or measured is None:
        return 0.0
    return measured - type_mean + format_reward


def trust(shrunk_gain: float, *, kappa: float, omega_max: float) -> float:
    """Eq. (11): weight of the distillation term, in [0, omega_max]."""
    return min(max(1.0 + kappa * shrunk_gain, 0.0), omega_max)


def evaluate_checks(
    outcomes: Sequence[CheckOutcome], statistics: TypeStatistics, settings: CheckSettings
) -> tuple[list[CheckResult], StagedStatistics]:
    """Estimate the whole batch: measure every task, update the type statistics (staged), then shrink and reward.

    Returns one result per outcome, in order, and the staged statistics the results were computed with.
    """
    measured = [_measure(outcome, settings) for outcome in outcomes]
    gains_by_type: dict[str, list[GainSample]] = {}
    for outcome, sample in zip(outcomes, measured, strict=True):
        if sample is not None:
            gains_by_type.setdefault(outcome.task_type, []).append(sample)
    staged = statistics.stage(gains_by_type)
    results = [
        _result(outcome, sample, staged.of(outcome.task_type), settings)
        for outcome, sample in zip(outcomes, measured, strict=True)
    ]
    return results, staged


def _measure(outcome: CheckOutcome, settings: CheckSettings) -> GainSample | None:
    """(gain, noise variance) of one task, or None where no valid comparison exists."""
    if not outcome.has_evidence or not outcome.skill_valid or outcome.state_matched is False:
        return None
    replays, control = (
        [
            utility(episode.success, episode.turns, alpha=settings.alpha, max_turns=settings.max_turns)
            for episode in group
            if episode.status == "ok"
        ]
        for group in (outcome.replays, outcome.control)
    )
    if not replays or not control:
        return None
    return gain(replays, control), noise_variance(replays, control)


def _result(
    outcome: CheckOutcome, sample: GainSample | None, prior: TypeMoments, settings: CheckSettings
) -> CheckResult:
    delta, noise = sample if sample is not None else (None, None)
    weight, shrunk = None, prior.mean
    if delta is not None and noise is not None:
        weight = shrinkage_weight(prior.variance or 0.0, noise)
        shrunk = shrink(delta, prior.mean, weight)
    return CheckResult(
        gain=delta,
        noise_variance=noise,
        type_mean=prior.mean,
        type_variance=prior.variance,
        shrinkage_weight=weight,
        shrunk_gain=shrunk,
        skill_reward=skill_reward(
            delta,
            prior.mean,
            skill_valid=outcome.skill_valid if outcome.has_evidence else None,
            rho=settings.rho,
            format_reward=settings.format_reward,
        ),
        trust=trust(shrunk, kappa=settings.kappa, omega_max=settings.omega_max),
    )
