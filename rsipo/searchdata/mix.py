"""How many rows come from each source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rsipo.problems import UserError


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of the sources.

    Attributes:
        kind: ``equal``; ``natural``, in proportion to the rows there are after the exact checks; or ``weights``.
        weights: for ``weights``: source -> weight; a source that is not named gives nothing.
    """

    kind: Literal["equal", "natural", "weights"]
    weights: tuple[tuple[str, float], ...] = ()

    @classmethod
    def parse(cls, text: str, sources: tuple[str, ...], option: str) -> Mix:
        """Read ``equal``, ``natural`` or ``nq=2,hotpotqa=1``.

        Raises:
            UserError: another word, an unknown source, or a weight that is no positive number.
        """
        if text == "equal":
            return cls("equal")
        if text == "natural":
            return cls("natural")
        weights: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = (piece.strip() for piece in part.partition("="))
            try:
                weight = float(value)
            except ValueError:
                weight = -1.0
            if name not in sources or not 0 <= weight < float("inf") or name in weights:
                raise UserError(
                    f"{option} {text!r}: write equal, natural, or weights such as nq=2,hotpotqa=1 of {', '.join(sources)}"
                )
            weights[name] = weight
        if not any(weights.values()):
            raise UserError(f"{option} {text!r}: all weights are 0")
        return cls("weights", tuple(weights.items()))

    def shares(self, total: int, available: Mapping[str, int]) -> dict[str, int]:
        """Rows per source that add up to ``total``, by largest remainder; ties go to the earlier source.

        Raises:
            UserError: there is nothing to share out.
        """
        if self.kind == "equal":
            weights = dict.fromkeys(available, 1.0)
        elif self.kind == "natural":
            weights = {name: float(count) for name, count in available.items()}
        else:
            weights = {name: dict(self.weights).get(name, 0.0) for name in available}
        whole = sum(weights.values())
        if not whole:
            raise UserError("no row of any source is left after de-duplication; look at the inputs")
        exact = {name: total * weight / whole for name, weight in weights.items()}
        counts = {name: int(value) for name, value in exact.items()}
        by_remainder = sorted(exact, key=lambda name: counts[name] - exact[name])
        for name in by_remainder[: total - sum(counts.values())]:
            counts[name] += 1
        return counts

    def __str__(self) -> str:
        return self.kind if not self.weights else ",".join(f"{name}={weight:g}" for name, weight in self.weights)
