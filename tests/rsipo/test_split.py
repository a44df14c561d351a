from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo.estimators import EpisodeOutcome
from rsipo.split import Split, choose_evidence, split


@given(st.integers(1, 8), st.integers(0, 2**40), st.integers(0, 10**6), st.text(max_size=20))
def test_halves_are_disjoint_equal_and_reproducible(half, seed, step, task_id):
    parts = split(2 * half, seed=seed, step=step, task_id=task_id)
    assert len(parts.evidence) == len(parts.control) == half
    assert sorted(parts.evidence + parts.control) == list(range(2 * half))
    assert parts == split(2 * half, seed=seed, step=step, task_id=task_id)


def test_known_values_on_any_machine():
    parts = split(8, seed=0, step=1, task_id="train/pick_and_place_simple-Mug-None-Shelf-1/trial_1")
    assert parts == Split(evidence=(3, 6, 5, 1), control=(0, 2, 4, 7))


@pytest.mark.parametrize("other", [{"seed": 1}, {"step": 6}, {"task_id": "b"}])
def test_every_part_of_the_seed_counts(other):
    base = {"seed": 0, "step": 5, "task_id": "a"}
    assert split(8, **base) != split(8, **(base | other))


def test_uniform_over_splits_and_over_the_order():
    firsts, sets = Counter(), Counter()
    for step in range(3000):
        parts = split(4, seed=0, step=step, task_id="t")
        firsts[parts.evidence[0]] += 1
        sets[frozenset(parts.evidence)] += 1
    assert len(sets) == 6
    assert all(abs(count - 500) < 100 for count in sets.values())
    assert all(abs(count - 750) < 120 for count in firsts.values())


@pytest.mark.parametrize("count", [0, 1, 7])
def test_odd_numbers_are_refused(count):
    with pytest.raises(ValueError, match="even number"):
        split(count, seed=0, step=1, task_id="t")


def rollouts(spec: str) -> list[EpisodeOutcome]:
    """One letter per rollout: s success, f failure, x lost."""
    return [EpisodeOutcome("timeout" if c == "x" else "ok", c == "s", 1) for c in spec]


@pytest.mark.parametrize(
    ("outcomes", "chosen"),
    [("ffffssff", 3), ("fsfsffff", 3), ("fsffssss", 1), ("xsxfffff", 1), ("fxfxssss", 2), ("xxxxssss", None)],
)
def test_evidence_prefers_success_then_the_random_order(outcomes, chosen):
    parts = Split(evidence=(3, 2, 1, 0), control=(4, 5, 6, 7))
    assert choose_evidence(parts, rollouts(outcomes)) == chosen


def test_role():
    parts = Split(evidence=(2, 0), control=(1, 3))
    assert [parts.role(index) for index in range(4)] == ["evidence", "control", "evidence", "control"]
