"""Moving averages of the replay gain per task type, eq. (6), staged until the update they were used in succeeded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

GainSample = tuple[float, float]
"""One task's measured (gain, noise variance)."""


@dataclass(frozen=True, slots=True)
class TypeMoments:
    """The vector m_c of eq. (6). ``weight`` is m^(0), which corrects the bias of the zero start."""

    gain: float = 0.0
    gain_squared: float = 0.0
    noise_variance: float = 0.0
    weight: float = 0.0

    def updated(self, samples: Sequence[GainSample], eta: float) -> TypeMoments:
        """One step of eq. (6) towards the averages over ``samples``, which must not be empty."""
        count = len(samples)
        batch = (
            math.fsum(gain for gain, _ in samples) / count,
            math.fsum(gain * gain for gain, _ in samples) / count,
            math.fsum(noise for _, noise in samples) / count,
            1.0,
        )
        old = (self.gain, self.gain_squared, self.noise_variance, self.weight)
        return TypeMoments(*((1 - eta) * before + eta * now for before, now in zip(old, batch, strict=True)))

    @property
    def mean(self) -> float:
        """Prior mean of the gain; 0 for a type without a gain so far."""
        return self.gain / self.weight if self.weight > 0 else 0.0

    @property
    def variance(self) -> float | None:
        """Between-task variance, total minus noise, at least 0; None for a type without a gain so far."""
        if self.weight <= 0:
            return None
        return max(0.0, self.gain_squared / self.weight - self.mean**2 - self.noise_variance / self.weight)


@dataclass(frozen=True, slots=True)
class StagedStatistics:
    """The statistics as they will be once this step's update succeeded. Made by ``TypeStatistics.stage``."""

    moments: Mapping[str, TypeMoments]
    base_version: int

    def of(self, task_type: str) -> TypeMoments:
        """The moments of a type; all zero for one never seen."""
        return self.moments.get(task_type, TypeMoments())


class TypeStatistics:
    """The committed statistics of all types.

    ``version`` counts commits. Use: ``staged = statistics.stage(...)``, train with the staged values, then
    ``statistics.commit(staged)`` only if the optimizer step succeeded.
    """

    def __init__(self, eta: float) -> None:
        if not 0 < eta <= 1:
            raise ValueError(f"eta={eta} must lie in (0, 1]")
        self.eta = eta
        self.version = 0
        self._moments: dict[str, TypeMoments] = {}

    def of(self, task_type: str) -> TypeMoments:
        """The committed moments of a type; all zero for one never seen."""
        return self._moments.get(task_type, TypeMoments())

    def stage(self, gains_by_type: Mapping[str, Sequence[GainSample]]) -> StagedStatistics:
        """Eq. (6) for every type with at least one gain in the batch; the others keep their moments."""
        moments = dict(self._moments)
        for task_type, samples in gains_by_type.items():
            if samples:
                moments[task_type] = self.of(task_type).updated(samples, self.eta)
        return StagedStatistics(moments, self.version)

    def commit(self, staged: StagedStatistics) -> None:
        """Make ``staged`` the current statistics. Raises RuntimeError if something was committed since staging."""
        if staged.base_version != self.version:
            raise RuntimeError(
                f"statistics were staged from version {staged.base_version}, but version {self.version} is current"
            )
        self._moments = dict(staged.moments)
        self.version += 1

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state; ``types`` has the form of a line of ``statistics.jsonl``."""
        return {"version": self.version, "types": {name: asdict(m) for name, m in sorted(self._moments.items())}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave. Raises ValueError for anything else, and then changes nothing."""
        try:
            version = int(state["version"])
            moments = {
                str(name): TypeMoments(**{key: float(value) for key, value in values.items()})
                for name, values in state["types"].items()
            }
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a state of the type statistics: {error!r}") from None
        for name, values in moments.items():
            if not all(map(math.isfinite, asdict(values).values())) or not 0 < values.weight <= 1 + 1e-9:
                raise ValueError(f"type statistics of {name!r} are damaged: {values}")
        self.version, self._moments = version, moments
