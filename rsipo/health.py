"""Health alarms: signs that a run is about to waste its hours, each judged against the run's own past."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from rsipo.run_settings import HealthSection

_LEAST_SUCCESS = 0.1  # below it, a halved success rate is chance


@dataclass(frozen=True, slots=True)
class Alarm:
    """``name`` is that of the metric ``health/NAME``, ``message`` what is wrong with which number."""

    name: str
    message: str


class HealthMonitor:
    """Watches the metrics of training steps.

    Args:
        settings: the thresholds.
        history: metrics of the steps before, oldest first; a resumed run judges as the uninterrupted one would.
    """

    def __init__(self, settings: HealthSection, history: Iterable[Mapping[str, Any]] = ()) -> None:
        self._settings = settings
        self._past: dict[str, list[float]] = {}
        for metrics in history:
            self._remember(metrics)

    def observe(self, metrics: Mapping[str, Any]) -> list[Alarm]:
        """The alarms of one step. Metrics without an update (an evaluation alone) are passed over."""
        if "update/grad_norm" not in metrics:
            return []
        settings = self._settings
        alarms = [
            self._gradient(metrics),
            self._strayed(metrics, "entropy", "ppo/entropy", settings.entropy_ratio),
            self._strayed(metrics, "response_length", "length/response_mean", settings.response_length_ratio),
            self._gap(metrics),
            self._collapse(metrics),
        ]
        self._remember(metrics)
        return [alarm for alarm in alarms if alarm is not None]

    def _remember(self, metrics: Mapping[str, Any]) -> None:
        if "update/grad_norm" not in metrics:
            return
        for name in ("update/grad_norm_max", "ppo/entropy", "length/response_mean", "student/success"):
            value = metrics.get(name)
            if value is not None and math.isfinite(value):
                self._past.setdefault(name, []).append(float(value))

    def _median(self, name: str) -> float | None:
        """Median of the last ``window`` steps; None before there are ``min_steps``."""
        past = self._past.get(name, [])[-self._settings.window :]
        return median(past) if len(past) >= self._settings.min_steps else None

    def _gradient(self, metrics: Mapping[str, Any]) -> Alarm | None:
        settings, norm = self._settings, float(metrics["update/grad_norm_max"])
        if not math.isfinite(norm):
            return Alarm("grad_norm", "a gradient was not finite, its update was skipped")
        usual = self._median("update/grad_norm_max")
        if settings.grad_norm_ratio is None or usual is None:
            return None
        if norm <= max(settings.grad_norm_ratio * usual, settings.grad_norm_floor):
            return None
        return Alarm("grad_norm", f"gradient norm {norm:.3g}, the median is {usual:.3g}")

    def _strayed(self, metrics: Mapping[str, Any], name: str, metric: str, ratio: float | None) -> Alarm | None:
        value, usual = metrics.get(metric), self._median(metric)
        if ratio is None or value is None or usual is None or usual <= 0 or usual / ratio <= value <= usual * ratio:
            return None
        return Alarm(name, f"{name.replace('_', ' ')} {value:.3g}, the median is {usual:.3g}")

    def _gap(self, metrics: Mapping[str, Any]) -> Alarm | None:
        limit, gap = self._settings.log_prob_gap, metrics.get("rollout/log_prob_gap_mean")
        if limit is None or gap is None or gap <= limit:
            return None
        return Alarm("log_prob_gap", f"log-probabilities of rollout server and actor differ by {gap:.3g} a token")

    def _collapse(self, metrics: Mapping[str, Any]) -> Alarm | None:
        """The mean of the last ``success_window`` steps against the best such mean that ended before them."""
        settings, success = self._settings, metrics.get("student/success")
        if settings.success_drop is None or success is None:
            return None
        size = settings.success_window
        rates = [*self._past.get("student/success", []), float(success)]
        before = rates[:-size]
        if len(before) < size:
            return None
        now = fmean(rates[-size:])
        best = max(fmean(before[start : start + size]) for start in range(len(before) - size + 1))
        if best < _LEAST_SUCCESS or now >= (1 - settings.success_drop) * best:
            return None
        return Alarm("success", f"success {now:.0%} over {size} steps, it has been {best:.0%}")
