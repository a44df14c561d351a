"""Seeded choices that keep the shares of the task types."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from rsipo.problems import UserError


def equal_quotas(names: Sequence[str], count: int) -> dict[str, int]:
    """``count`` divided evenly; the first names, in sorted order, get one more. 500 over six types: 84, 84, 83, …"""
    each, more = divmod(count, len(names))
    return {name: each + (place < more) for place, name in enumerate(sorted(names))}


def proportional_quotas(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """``count`` divided in proportion to ``sizes``, by largest remainders; ties go to the name that sorts first."""
    total = sum(sizes.values())
    quotas = {name: count * size // total for name, size in sizes.items()}
    by_remainder = sorted(sizes, key=lambda name: (-(count * sizes[name] % total), name))
    for name in by_remainder[: count - sum(quotas.values())]:
        quotas[name] += 1
    return quotas


def draw(groups: Mapping[str, Sequence[str]], quotas: Mapping[str, int], *, seed: int, purpose: str) -> set[str]:
    """``quotas[name]`` ids of each group.

    The order of an id is the hash of (seed, purpose, id), so further ids in a group never reshuffle those that were there.

    Raises:
        UserError: a group has fewer ids than its quota.
    """
    chosen: set[str] = set()
    for name, quota in quotas.items():
        if len(groups[name]) < quota:
            raise UserError(
                f"{name} has {len(groups[name])} tasks where {quota} are wanted: add data, or ask for fewer"
            )
        chosen.update(sorted(groups[name], key=lambda one: _rank(seed, purpose, one))[:quota])
    return chosen


def _rank(seed: int, purpose: str, one: str) -> str:
    return hashlib.sha256(f"{seed}\n{purpose}\n{one}".encode("utf-8", "surrogatepass")).hexdigest()
