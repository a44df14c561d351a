from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo import estimators
from rsipo.estimators import CheckOutcome, EpisodeOutcome, TypeMoments, TypeStatistics, evaluate_checks
from rsipo.settings import CheckSettings

ALFWORLD = CheckSettings(max_turns=50)
SEARCH = CheckSettings(max_turns=4, rho=0.0, format_reward=0.05)


def episodes(*turns: int, failed: int = 0, lost: int = 0) -> list[EpisodeOutcome]:
    """Successes of the given turns, then failures at the limit, then lost episodes."""
    return (
        [EpisodeOutcome("ok", True, count) for count in turns]
        + [EpisodeOutcome("ok", False, 4)] * failed
        + [EpisodeOutcome("failed", False, 2)] * lost
    )


def checked(task_type="pick", *, control, replays=(), valid=True, matched=True, evidence=True) -> CheckOutcome:
    return CheckOutcome(task_type, control, replays, evidence, valid if evidence else None, matched)


# ---------------------------------------------------------------------------------------------- single equations


def test_utility_eq4():
    assert estimators.utility(True, 25, alpha=0.5, max_turns=50) == 0.75
    assert estimators.utility(True, 50, alpha=0.5, max_turns=50) == 0.5
    assert estimators.utility(True, 3, alpha=0.0, max_turns=50) == 1.0
    assert estimators.utility(False, 3, alpha=0.5, max_turns=50) == 0.0


@pytest.mark.parametrize("turns", [-1, 51])
def test_utility_refuses_turns_outside_the_limit(turns):
    with pytest.raises(ValueError, match="limit of 50"):
        estimators.utility(True, turns, alpha=0.5, max_turns=50)


def test_gain_eq5_by_hand():
    assert estimators.gain([0.9, 0.5, 0.0, 0.0], [0.5, 0.0]) == pytest.approx(0.35 - 0.25)


def test_noise_variance_by_hand():
    # Replays: (4 * 0.625 + 1) / 6 = 7/12; control: (4 * 0.15625 + 1) / 6 = 13/48.
    expected = (7 / 12) * (5 / 12) / 4 + (13 / 48) * (35 / 48) / 4
    assert estimators.noise_variance([0.625] * 4, [0.625, 0, 0, 0]) == pytest.approx(expected)


def test_shrinkage_eq7_by_hand():
    weight = estimators.shrinkage_weight(0.03, 0.09)
    assert weight == pytest.approx(0.25)
    assert estimators.shrink(0.5, 0.1, weight) == pytest.approx(0.2)


@pytest.mark.parametrize(("shrunk", "omega"), [(-0.5, 0), (-0.7, 0), (0, 1), (0.25, 1.5), (0.5, 2), (0.9, 2)])
def test_trust_eq11_matches_the_paper(shrunk, omega):
    assert estimators.trust(shrunk, kappa=2.0, omega_max=2.0) == omega


def test_skill_reward_eq8_cases():
    reward = estimators.skill_reward
    assert reward(0.5, 0.2, skill_valid=True, rho=0.2, format_reward=0.0) == pytest.approx(0.3)
    assert reward(0.5, 0.2, skill_valid=True, rho=0.0, format_reward=0.05) == pytest.approx(0.35)
    assert reward(None, 0.2, skill_valid=False, rho=0.2, format_reward=0.05) == -0.2
    assert reward(None, 0.2, skill_valid=True, rho=0.2, format_reward=0.05) == 0.0
    assert reward(None, 0.2, skill_valid=None, rho=0.2, format_reward=0.05) == 0.0


# ---------------------------------------------------------------------------------------------- the paper's cases


def test_figure_10_search_gain():
    outcome = checked("2wiki", control=episodes(3, failed=3), replays=episodes(3, 3, 3, 3))
    (result,), _ = evaluate_checks([outcome], TypeStatistics(0.1), SEARCH)
    assert result.gain == pytest.approx(0.46875)


def test_figure_9_alfworld_gain_and_reward():
    outcome = checked("pick_two", control=episodes(failed=4), replays=episodes(10, 10, 11, 18))
    statistics = TypeStatistics(0.1)
    # The paper's reward of 0.811 implies an updated type mean near 0.067: m1 / m0 with m0 = 1 in the long run.
    before = (0.067 - 0.1 * 0.8775) / 0.9
    state = {"gain": before, "gain_squared": 0.01, "noise_variance": 0.005, "weight": 1.0}
    statistics.load_state_dict({"version": 40, "types": {"pick_two": state}})
    (result,), _ = evaluate_checks([outcome], statistics, ALFWORLD)
    assert result.gain == pytest.approx(0.8775)
    assert result.type_mean == pytest.approx(0.067)
    assert result.skill_reward == pytest.approx(0.811, abs=1e-3)


def test_first_batch_of_a_type_has_the_batch_mean():
    outcomes = [
        checked(control=episodes(failed=4), replays=episodes(10, failed=3)),
        checked(control=episodes(20, failed=3), replays=episodes(10, 20, 30, failed=1)),
    ]
    results, staged = evaluate_checks(outcomes, TypeStatistics(0.1), ALFWORLD)
    mean = sum(result.gain for result in results) / 2
    assert staged.of("pick").weight == pytest.approx(0.1)
    assert [result.type_mean for result in results] == pytest.approx([mean, mean])
    assert sum(result.skill_reward for result in results) == pytest.approx(0)


# ---------------------------------------------------------------------------------------------- fallbacks


def test_never_seen_type_without_a_gain():
    results, staged = evaluate_checks(
        [checked(control=episodes(failed=4), evidence=False), checked(control=episodes(failed=4), valid=False)],
        TypeStatistics(0.1),
        ALFWORLD,
    )
    for result, reward in zip(results, [0.0, -0.2], strict=True):
        assert (result.gain, result.noise_variance, result.type_variance, result.shrinkage_weight) == (None,) * 4
        assert (result.type_mean, result.shrunk_gain, result.trust) == (0.0, 0.0, 1.0)
        assert result.skill_reward == reward
    assert staged.moments == {}


@pytest.mark.parametrize(
    ("outcome", "reward"),
    [
        (checked(control=episodes(failed=4), replays=episodes(10, 10, 10, 10), matched=False), 0.0),
        (checked(control=episodes(failed=4), replays=episodes(lost=4), matched=None), 0.0),
        (checked(control=episodes(lost=4), replays=episodes(10, 10, 10, 10)), 0.0),
        (checked(control=episodes(failed=4), valid=False, matched=None), -0.2),
        (checked(control=episodes(failed=4), evidence=False, matched=None), 0.0),
        (checked(control=episodes(failed=4), valid=None, matched=None), 0.0),
    ],
    ids=["mismatch", "replays lost", "control lost", "invalid skill", "no evidence", "writing lost"],
)
def test_without_a_gain_the_prior_stands_and_is_not_touched(outcome, reward):
    measured = checked(control=episodes(failed=4), replays=episodes(10, 10, failed=2))
    alone, staged_alone = evaluate_checks([measured], TypeStatistics(0.1), ALFWORLD)
    both, staged = evaluate_checks([measured, outcome], TypeStatistics(0.1), ALFWORLD)
    assert both[0] == alone[0]
    assert staged.moments == staged_alone.moments
    assert both[1].gain is None
    assert both[1].shrunk_gain == both[1].type_mean == alone[0].type_mean
    assert both[1].trust == pytest.approx(1 + 2 * alone[0].type_mean)
    assert both[1].skill_reward == reward


def test_lost_episodes_leave_their_group():
    whole = checked(control=episodes(10, failed=2), replays=episodes(20, 30))
    with_lost = checked(control=episodes(10, failed=2, lost=1), replays=episodes(20, 30, lost=2))
    assert (
        evaluate_checks([whole], TypeStatistics(0.1), ALFWORLD)[0]
        == (evaluate_checks([with_lost], TypeStatistics(0.1), ALFWORLD)[0])
    )


# ---------------------------------------------------------------------------------------------- against slow code


def reference(outcomes, history, settings):
    """The same batch by plain loops over the paper's text, with the moving averages unrolled over all batches."""
    measured = []
    for outcome in outcomes:
        groups = []
        for group in (outcome.replays, outcome.control):
            values = []
            for episode in group:
                if episode.status == "ok":
                    values.append((1 - settings.alpha * episode.turns / settings.max_turns) if episode.success else 0)
            groups.append(values)
        valid = outcome.has_evidence and outcome.skill_valid and outcome.state_matched is not False
        if valid and groups[0] and groups[1]:
            means = [sum(g) / len(g) for g in groups]
            noise = 0
            for mean, group in zip(means, groups, strict=True):
                smooth = (len(group) * mean + 1) / (len(group) + 2)
                noise += smooth * (1 - smooth) / len(group)
            measured.append((means[0] - means[1], noise))
        else:
            measured.append(None)
    history.append([(o.task_type, m) for o, m in zip(outcomes, measured, strict=True)])
    rows = []
    for outcome, sample in zip(outcomes, measured, strict=True):
        batches = []
        for batch in history:
            gains = [m for kind, m in batch if kind == outcome.task_type and m is not None]
            if gains:
                batches.append(gains)
        sums = [0.0] * 4
        for age, gains in enumerate(reversed(batches)):
            share = settings.eta * (1 - settings.eta) ** age
            size = len(gains)
            sums[0] += share * sum(d for d, _ in gains) / size
            sums[1] += share * sum(d * d for d, _ in gains) / size
            sums[2] += share * sum(v for _, v in gains) / size
            sums[3] += share
        mean = sums[0] / sums[3] if sums[3] else 0.0
        variance = max(0.0, sums[1] / sums[3] - mean**2 - sums[2] / sums[3]) if sums[3] else 0.0
        shrunk, reward = mean, 0.0
        if sample:
            weight = variance / (variance + sample[1])
            shrunk = weight * sample[0] + (1 - weight) * mean
            reward = sample[0] - mean + settings.format_reward
        elif outcome.has_evidence and outcome.skill_valid is False:
            reward = -settings.rho
        rows.append((mean, shrunk, reward, min(max(1 + settings.kappa * shrunk, 0), settings.omega_max)))
    return rows


def test_many_steps_agree_with_the_slow_reference():
    draw = random.Random(3)
    statistics, history = TypeStatistics(0.1), []
    for _ in range(40):
        outcomes = []
        for _ in range(draw.randint(1, 6)):
            control, replays = (
                [
                    EpisodeOutcome(draw.choice(["ok"] * 5 + ["timeout"]), draw.random() < chance, draw.randint(1, 50))
                    for _ in range(4)
                ]
                for chance in (0.3, 0.6)
            )
            outcomes.append(
                CheckOutcome(
                    draw.choice(["pick", "heat", "look"]),
                    control,
                    replays,
                    draw.random() < 0.9,
                    draw.random() < 0.8,
                    draw.random() < 0.9,
                )
            )
        results, staged = evaluate_checks(outcomes, statistics, ALFWORLD)
        statistics.commit(staged)
        for result, (mean, shrunk, reward, omega) in zip(results, reference(outcomes, history, ALFWORLD), strict=True):
            assert result.type_mean == pytest.approx(mean)
            assert result.shrunk_gain == pytest.approx(shrunk)
            assert result.skill_reward == pytest.approx(reward)
            assert result.trust == pytest.approx(omega)


# ---------------------------------------------------------------------------------------------- properties

played = st.builds(EpisodeOutcome, st.sampled_from(["ok", "ok", "failed"]), st.booleans(), st.integers(0, 50))
outcomes_of = st.builds(
    CheckOutcome,
    st.sampled_from(["a", "b"]),
    st.lists(played, max_size=4),
    st.lists(played, max_size=4),
    st.booleans(),
    st.sampled_from([True, True, False, None]),
    st.sampled_from([True, True, False, None]),
)


@given(st.lists(st.lists(outcomes_of, max_size=6), min_size=1, max_size=4))
def test_bounds(batches):
    statistics = TypeStatistics(0.1)
    for outcomes in batches:
        results, staged = evaluate_checks(outcomes, statistics, ALFWORLD)
        statistics.commit(staged)
        for result in results:
            assert 0 <= result.trust <= 2
            assert -1 <= result.shrunk_gain <= 1
            if result.gain is None:
                assert result.shrunk_gain == result.type_mean
                continue
            assert result.noise_variance > 0
            assert 0 <= result.shrinkage_weight <= 1
            low, high = sorted([result.gain, result.type_mean])
            assert low - 1e-12 <= result.shrunk_gain <= high + 1e-12
            if result.type_variance == 0:
                assert result.shrunk_gain == result.type_mean


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_gain_and_noise_bounds(replays, control):
    assert -1 <= estimators.gain(replays, control) <= 1
    assert 0 < estimators.noise_variance(replays, control) <= 0.5


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(0, 4), st.floats(0, 4))
def test_trust_is_monotone(one, other, kappa, omega_max):
    low, high = sorted([one, other])
    trust = [estimators.trust(value, kappa=kappa, omega_max=omega_max) for value in (low, high)]
    assert 0 <= trust[0] <= trust[1] <= omega_max


def test_order_of_tasks_does_not_matter():
    outcomes = [checked(control=episodes(n, failed=3), replays=episodes(n, n + 1, failed=2)) for n in range(1, 9)]
    forwards, _ = evaluate_checks(outcomes, TypeStatistics(0.1), ALFWORLD)
    backwards, _ = evaluate_checks(outcomes[::-1], TypeStatistics(0.1), ALFWORLD)
    assert forwards == backwards[::-1]


def test_zero_moments_have_no_variance():
    assert TypeMoments().mean == 0.0
    assert TypeMoments().variance is None
    assert not math.isnan(estimators.shrinkage_weight(0.0, 0.0))
