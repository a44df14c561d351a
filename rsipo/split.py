"""The evidence/control split of a task's rollouts, drawn before any outcome is known, and the choice of evidence."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


class Finished(Protocol):
    """What the choice looks at. ``agent_system.rollout.types.Episode`` is one."""

    @property
    def status(self) -> str: ...
    @property
    def success(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Split:
    """Rollout indices. ``evidence`` is in the random order that decides between equals; ``control`` is sorted."""

    evidence: tuple[int, ...]
    control: tuple[int, ...]

    def role(self, index: int) -> Literal["evidence", "control"]:
        """``evidence`` or ``control``, as the audit names it."""
        return "evidence" if index in self.evidence else "control"


def split(num_rollouts: int, *, seed: int, step: int, task_id: str) -> Split:
    """Half evidence, half control, from (run seed, global step, task id) alone: equal on resume and on any machine.

    Raises ValueError unless ``num_rollouts`` is even and at least 2.
    """
    if num_rollouts < 2 or num_rollouts % 2:
        raise ValueError(f"num_rollouts={num_rollouts} cannot be split in half: use an even number of at least 2")
    digest = hashlib.sha256(json.dumps([seed, step, task_id]).encode()).digest()
    generator = random.Random(int.from_bytes(digest, "big"))
    # Sorting by random() relies only on the stream that Python promises to keep; shuffle() has no such promise.
    order = sorted(range(num_rollouts), key=[generator.random() for _ in range(num_rollouts)].__getitem__)
    half = num_rollouts // 2
    return Split(evidence=tuple(order[:half]), control=tuple(sorted(order[half:])))


def choose_evidence(parts: Split, rollouts: Sequence[Finished]) -> int | None:
    """Index of the trajectory to write a skill from: the first success in the random order, else the first usable.

    ``rollouts`` is indexed by rollout index. None when every evidence rollout was lost.
    """
    usable = [index for index in parts.evidence if rollouts[index].status == "ok"]
    successes = [index for index in usable if rollouts[index].success]
    return next(iter(successes or usable), None)
