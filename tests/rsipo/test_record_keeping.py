"""What a step's records say of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from rsipo.record_keeping import lost_episodes
from rsipo.trainer import refuse_a_biased_step
from verl_ext.trainer import TrainingFault


@pytest.fixture
def records(make_episode: Callable) -> list[SimpleNamespace]:
    """Two tasks with three rollouts and one replay each; three of the eight are lost, by two reasons."""
    good = make_episode()
    down = dataclasses.replace(good, status="failed", error="RetrievalFault: down")
    late = dataclasses.replace(good, status="timeout", error="turn 2 not over within 60 s")
    return [
        SimpleNamespace(episodes=[good, down, good], replays=[down]),
        SimpleNamespace(episodes=[good, good, late], replays=[good]),
    ]


def test_lost_rollouts_and_replays_are_counted_with_the_commonest_reason(records: list[SimpleNamespace]) -> None:
    assert lost_episodes(records) == (3, 8, "RetrievalFault: down")
    assert lost_episodes([]) == (0, 0, "")


def test_a_step_that_lost_too_much_is_not_trained(records: list[SimpleNamespace]) -> None:
    refuse_a_biased_step(4, records, 3 / 8)
    with pytest.raises(TrainingFault, match=r"step 4 is not trained: 3 of its 8 episodes .*'RetrievalFault: down'"):
        refuse_a_biased_step(4, records, 0.25)
    refuse_a_biased_step(4, [], 0.0)
