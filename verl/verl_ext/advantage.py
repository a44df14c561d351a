"""Group-normalised advantages (GRPO) for agents whose training samples are turns, not episodes. numpy only."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Literal

import numpy as np

EPSILON = 1e-6
"""Added to every deviation that is divided by."""


def group_advantages(
    groups: Sequence[Hashable],
    episodes: Sequence[Hashable],
    rewards: Any,
    penalties: Any,
    *,
    group_by: Literal["turn", "episode"] = "turn",
    statistics: Literal["reward", "outcome"] = "reward",
    std_floor: float = 0.0,
) -> tuple[np.ndarray, dict[str, float]]:
    """Advantage of each turn: its episode's outcome minus its own penalty, normalised over the group (one task).

    ``advantage = (outcome - penalty - mean) / (max(deviation, std_floor) + 1e-6)``, with the sample deviation (n - 1);
    a group whose deviation is zero gives zero.

    Beware of the defaults, which follow the verl-agent lineage: in a group in which every episode failed, the penalty
    alone makes the deviation, and so advantages as large as those of success. A floor, or ``statistics="outcome"``,
    keeps the penalty in proportion.

    Args:
        groups, episodes: [n] ids, one per turn. An episode id belongs to one group.
        rewards: float [n], the outcome reward of the turn's episode, repeated on each of its turns.
        penalties: float [n], >= 0, for example 0.1 where the turn's action was invalid.
        group_by: take mean and deviation over all turns of the group, or over its episodes (mean over their turns).
        statistics: take them of outcome minus penalty, or of the outcome alone.
        std_floor: smallest deviation to divide by.

    Returns:
        float32 [n], and metrics: ``advantage/unmixed_groups`` (share of groups whose episodes all ended alike),
        ``advantage/rms_outcome`` and ``advantage/rms_penalty`` (its size by cause; the two parts add up to it).

    Raises:
        ValueError: lengths differ, a value is not finite or a penalty negative, or an episode lies in two groups or
            has two outcomes.
    """
    outcome = np.asarray(rewards, dtype=np.float64)
    penalty = np.asarray(penalties, dtype=np.float64)
    _validate(groups, episodes, outcome, penalty, group_by, statistics, std_floor)

    from_outcome = np.zeros_like(outcome)
    from_penalty = np.zeros_like(penalty)
    rows_of_groups = _rows_by(groups)
    unmixed = 0
    for rows in rows_of_groups.values():
        unmixed += np.ptp(outcome[rows]) == 0
        counted = penalty[rows] if statistics == "reward" else np.zeros(len(rows))
        units_outcome, units_penalty = outcome[rows], counted
        if group_by == "episode":
            members = _rows_by([episodes[row] for row in rows]).values()
            units_outcome = np.array([units_outcome[member].mean() for member in members])
            units_penalty = np.array([counted[member].mean() for member in members])
        deviation = max(_deviation(units_outcome - units_penalty), std_floor)
        if deviation > 0:
            from_outcome[rows] = (outcome[rows] - units_outcome.mean()) / (deviation + EPSILON)
            from_penalty[rows] = (units_penalty.mean() - penalty[rows]) / (deviation + EPSILON)
    metrics = {
        "advantage/unmixed_groups": unmixed / max(1, len(rows_of_groups)),
        "advantage/rms_outcome": _rms(from_outcome),
        "advantage/rms_penalty": _rms(from_penalty),
    }
    return (from_outcome + from_penalty).astype(np.float32), metrics


def _rows_by(keys: Sequence[Hashable]) -> dict[Hashable, np.ndarray]:
    rows: dict[Hashable, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return {key: np.array(found) for key, found in rows.items()}


def _deviation(values: np.ndarray) -> float:
    """Sample standard deviation; exactly zero for equal values and for a single one."""
    return 0.0 if np.ptp(values) == 0 else float(values.std(ddof=1))


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


def _validate(
    groups: Sequence[Hashable],
    episodes: Sequence[Hashable],
    outcome: np.ndarray,
    penalty: np.ndarray,
    group_by: str,
    statistics: str,
    std_floor: float,
) -> None:
    if group_by not in ("turn", "episode"):
        raise ValueError(f"group_by={group_by!r}: use 'turn' or 'episode'")
    if statistics not in ("reward", "outcome"):
        raise ValueError(f"statistics={statistics!r}: use 'reward' or 'outcome'")
    if std_floor < 0:
        raise ValueError(f"std_floor={std_floor} must not be negative")
    lengths = {len(groups), len(episodes), len(outcome), len(penalty)}
    if len(lengths) != 1:
        raise ValueError(f"one group, episode, reward and penalty per turn are needed, got lengths {sorted(lengths)}")
    if not (np.isfinite(outcome).all() and np.isfinite(penalty).all()) or (penalty < 0).any():
        raise ValueError("rewards must be finite, penalties finite and not negative")
    facts: dict[Hashable, tuple[Hashable, float]] = {}
    for group, episode, value in zip(groups, episodes, outcome.tolist(), strict=True):
        if facts.setdefault(episode, (group, value)) != (group, value):
            raise ValueError(f"episode {episode!r} appears in two groups or with two outcomes")
