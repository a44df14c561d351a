"""The estimates once more, written from the paper and by other means than the trainer's (exact fractions).

This module shares no formula with ``rsipo.estimators`` on purpose: an audit that used the trainer's code would repeat
its mistakes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from rsipo.audit.records import MomentsRecord, ReplayRecord, RolloutRecord, TaskRecord
from rsipo.settings import CheckSettings

Moments = tuple[Fraction, Fraction, Fraction, Fraction]
"""(gain, gain squared, noise variance, weight) of one type."""

Estimates = dict[str, float | None]

START: Moments = (Fraction(0), Fraction(0), Fraction(0), Fraction(0))


def measure(record: TaskRecord, settings: CheckSettings) -> tuple[Fraction, Fraction] | None:
    """(gain, noise variance) of a task from its raw outcomes, eq. (4) and (5); None where nothing was measured."""
    skill_taught = record.evidence_index is not None and record.skill is not None and record.skill.valid
    if not skill_taught or any(replay.state_matched is False for replay in record.replays):
        return None
    replays = _utilities(record.replays, settings)
    control = _utilities((rollout for rollout in record.rollouts if rollout.role == "control"), settings)
    if not replays or not control:
        return None
    return _mean(replays) - _mean(control), _sampling_variance(replays) + _sampling_variance(control)


def moments_after(
    before: Mapping[str, Moments], records: Sequence[TaskRecord], settings: CheckSettings
) -> dict[str, Moments]:
    """The moving averages of all types after a step, eq. (6)."""
    eta = Fraction(settings.eta)
    after = dict(before)
    for task_type in {record.task_type for record in records}:
        measured = [measure(record, settings) for record in records if record.task_type == task_type]
        pairs = [pair for pair in measured if pair is not None]
        if pairs:
            gains = [delta for delta, _ in pairs]
            target = (_mean(gains), _mean([d * d for d in gains]), _mean([noise for _, noise in pairs]), Fraction(1))
            old = before.get(task_type, START)
            m1, m2, mv, m0 = (x + eta * (y - x) for x, y in zip(old, target, strict=True))
            after[task_type] = (m1, m2, mv, m0)
    return after


def estimates(record: TaskRecord, moments: Moments, settings: CheckSettings) -> Estimates:
    """Everything that is estimated for a task, given its type's moments after the step: eq. (5), (7), (8), (11)."""
    m1, m2, mv, m0 = moments
    seen = m0 > 0
    mean = m1 / m0 if seen else Fraction(0)
    variance = max(Fraction(0), m2 / m0 - mean * mean - mv / m0) if seen else None
    measured = measure(record, settings)

    shrunk, weight = mean, None
    if measured is not None and variance is not None:
        delta, noise = measured
        # The sum can only be zero in a damaged record (turns past the limit), which the rules report.
        weight = variance / (variance + noise) if variance + noise else Fraction(0)
        shrunk = mean + weight * (delta - mean)

    reward = Fraction(0)
    if record.skill is not None and not record.skill.valid:
        reward = -Fraction(settings.rho)
    elif measured is not None:
        reward = measured[0] - mean + Fraction(settings.format_reward)

    trust = 1 + Fraction(settings.kappa) * shrunk
    trust = min(Fraction(settings.omega_max), max(Fraction(0), trust))
    values: dict[str, Fraction | None] = {
        "gain": measured[0] if measured else None,
        "noise_variance": measured[1] if measured else None,
        "type_mean": mean,
        "type_variance": variance,
        "shrinkage_weight": weight,
        "shrunk_gain": shrunk,
        "skill_reward": reward,
        "trust": trust,
    }
    return {name: None if value is None else float(value) for name, value in values.items()}


def exact(record: MomentsRecord) -> Moments:
    """Recorded moments as fractions."""
    return tuple(map(Fraction, (record.gain, record.gain_squared, record.noise_variance, record.weight)))  # type: ignore[return-value]


def _utilities(episodes: Iterable[RolloutRecord | ReplayRecord], settings: CheckSettings) -> list[Fraction]:
    """Utilities of the episodes that were not lost, eq. (4)."""
    discount = Fraction(settings.alpha) / settings.max_turns
    return [
        Fraction(episode.success) * (1 - discount * episode.turns) for episode in episodes if episode.status == "ok"
    ]


def _mean(values: Sequence[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


def _sampling_variance(utilities: Sequence[Fraction]) -> Fraction:
    """One group's part of v: Bernoulli variance of the Laplace-smoothed mean utility over the group's size."""
    count = len(utilities)
    smoothed = (sum(utilities, Fraction(0)) + 1) / (count + 2)
    return smoothed * (1 - smoothed) / count
