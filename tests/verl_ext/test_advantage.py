from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.advantage import EPSILON, group_advantages


def turns(*episodes: tuple[str, float, list[float]]):
    """(group, reward, penalties of its turns) per episode, as the function's four columns."""
    rows = [(g, f"{g}/{n}", r, p) for n, (g, r, penalties) in enumerate(episodes) for p in penalties]
    return tuple(map(list, zip(*rows, strict=True)))


def test_by_hand_over_turns():
    columns = turns(("a", 10.0, [0.0, 0.1]), ("a", 0.0, [0.0]))
    advantage, metrics = group_advantages(*columns)
    rewards = [10.0, 9.9, 0.0]
    mean = sum(rewards) / 3
    deviation = (sum((r - mean) ** 2 for r in rewards) / 2) ** 0.5
    assert advantage == pytest.approx([(r - mean) / (deviation + 1e-6) for r in rewards])
    assert advantage.dtype == np.float32
    assert metrics["advantage/unmixed_groups"] == 0


def test_by_hand_over_episodes():
    columns = turns(("a", 10.0, [0.0, 0.1]), ("a", 0.0, [0.0]))
    advantage, _ = group_advantages(*columns, group_by="episode")
    units = [9.95, 0.0]
    deviation = (2 * 4.975**2) ** 0.5
    assert advantage == pytest.approx([(r - sum(units) / 2) / (deviation + EPSILON) for r in (10.0, 9.9, 0.0)])


def test_by_hand_from_outcomes_alone():
    columns = turns(("a", 10.0, [0.0, 0.1]), ("a", 0.0, [0.0]))
    advantage, _ = group_advantages(*columns, statistics="outcome")
    mean, deviation = 20 / 3, np.std([10, 10, 0], ddof=1)
    assert advantage == pytest.approx([(r - mean) / (deviation + EPSILON) for r in (10.0, 9.9, 0.0)])


def all_failed():
    return turns(
        *[("a", 0.0, [0.1 if (turn + episode) % 6 == 0 else 0.0 for turn in range(12)]) for episode in range(8)]
    )


def test_the_trap_of_a_failed_group():
    advantage, metrics = group_advantages(*all_failed())
    assert np.abs(advantage).max() > 2, "the penalty alone becomes as large as success"
    assert metrics["advantage/unmixed_groups"] == 1
    assert metrics["advantage/rms_outcome"] == 0
    assert metrics["advantage/rms_penalty"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("options", "largest"), [({"std_floor": 1.0}, 0.1), ({"statistics": "outcome"}, 0.0)])
def test_the_ways_out_of_the_trap(options, largest):
    advantage, _ = group_advantages(*all_failed(), **options)
    assert np.abs(advantage).max() <= largest
    if largest:
        assert advantage.min() < 0 < advantage.max(), "the penalty still counts, in proportion"


def test_no_deviation_gives_exactly_zero():
    columns = turns(("a", 10.0, [0.0, 0.0]), ("a", 10.0, [0.0]), ("b", 0.3, [0.1]), ("c", 0.7, [0.1] * 7))
    advantage, metrics = group_advantages(*columns)
    assert (advantage == 0).all()
    assert metrics["advantage/unmixed_groups"] == 1


def test_groups_are_independent_and_order_does_not_matter():
    first, second = turns(("a", 10.0, [0.0, 0.1]), ("a", 0.0, [0.0])), turns(("b", 1.0, [0.0]), ("b", 0.0, [0.5] * 3))
    alone = np.concatenate([group_advantages(*first)[0], group_advantages(*second)[0]])
    joined = [one + other for one, other in zip(first, second, strict=True)]
    together, metrics = group_advantages(*joined)
    assert together == pytest.approx(alone)
    assert metrics["advantage/unmixed_groups"] == 0
    order = np.random.default_rng(0).permutation(len(alone))
    shuffled, _ = group_advantages(*[[column[i] for i in order] for column in joined])
    assert shuffled == pytest.approx(alone[order], abs=1e-6)


def test_the_two_causes_add_up():
    columns = turns(("a", 10.0, [0.0, 0.1, 0.1]), ("a", 0.0, [0.1, 0.0]), ("b", 0.0, [0.1]))
    advantage, metrics = group_advantages(*columns, std_floor=1.0)
    no_penalty = [*columns[:3], [0.0] * 6]
    assert metrics["advantage/rms_outcome"] > metrics["advantage/rms_penalty"] > 0
    assert group_advantages(*no_penalty, std_floor=1.0)[1]["advantage/rms_penalty"] == 0
    assert advantage.shape == (6,)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.booleans(), st.lists(st.booleans(), min_size=1, max_size=5)),
        min_size=1,
        max_size=9,
    ),
    st.sampled_from(["turn", "episode"]),
    st.sampled_from(["reward", "outcome"]),
    st.sampled_from([0.0, 1.0]),
)
def test_against_a_slow_reference(episodes, group_by, statistics, floor):
    columns = turns(*[(g, 10.0 * won, [0.1 * bad for bad in bads]) for g, won, bads in episodes])
    advantage, _ = group_advantages(*columns, group_by=group_by, statistics=statistics, std_floor=floor)
    expected = []
    for group, _, outcome, penalty in zip(*columns, strict=True):
        units = []
        for g, won, bads in episodes:
            if g == group:
                values = [10.0 * won - (0.1 * bad if statistics == "reward" else 0) for bad in bads]
                units += values if group_by == "turn" else [sum(values) / len(values)]
        deviation = np.std(units, ddof=1) if len(units) > 1 and max(units) > min(units) else 0.0
        deviation = max(deviation, floor)
        expected.append((outcome - penalty - np.mean(units)) / (deviation + EPSILON) if deviation else 0.0)
    # A deviation of rounding size may be zero in one of the two; its advantages are then of no size either.
    assert advantage == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((["a"], ["e"], [1.0, 2.0], [0.0]), "lengths"),
        ((["a"], ["e"], [float("nan")], [0.0]), "finite"),
        ((["a"], ["e"], [1.0], [-0.1]), "not negative"),
        ((["a", "b"], ["e", "e"], [1.0, 1.0], [0.0, 0.0]), "two groups"),
        ((["a", "a"], ["e", "e"], [1.0, 0.0], [0.0, 0.0]), "two outcomes"),
    ],
)
def test_bad_input(columns, message):
    with pytest.raises(ValueError, match=message):
        group_advantages(*columns)


@pytest.mark.parametrize("options", [{"group_by": "group"}, {"statistics": "mean"}, {"std_floor": -1}])
def test_bad_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        group_advantages(["a"], ["e"], [1.0], [0.0], **options)


def test_empty():
    advantage, metrics = group_advantages([], [], [], [])
    assert advantage.shape == (0,)
    assert metrics["advantage/unmixed_groups"] == 0
