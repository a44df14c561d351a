"""Mini-batch plans, padding rows and packing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_ext.batch import PADDING, Sample, check_samples, pack, plan_mini_batches, plan_update

LENGTHS = st.lists(st.integers(2, 500), min_size=1, max_size=60)


@given(lengths=LENGTHS, size=st.integers(1, 20), dp=st.integers(1, 9), seed=st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_plan_covers_every_sample_once_in_equal_shares(lengths: list[int], size: int, dp: int, seed: int) -> None:
    plan = plan_mini_batches(lengths, size, dp, seed)
    members = [[row for rank in part for row in rank if row != PADDING] for part in plan]
    assert sorted(row for part in members for row in part) == list(range(len(lengths)))
    assert len(plan) == -(-len(lengths) // size)
    assert max(map(len, members)) - min(map(len, members)) <= 1
    for part in plan:
        assert len(part) == dp
        assert len({len(rank) for rank in part}) == 1
        assert all(PADDING not in rank[: len(rank) - rank.count(PADDING)] for rank in part)


@given(lengths=LENGTHS, size=st.integers(1, 20), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_members_of_a_mini_batch_do_not_depend_on_the_ranks(lengths: list[int], size: int, seed: int) -> None:
    plans = [plan_mini_batches(lengths, size, dp, seed) for dp in (1, 2, 5)]
    members = [[{row for rank in part for row in rank} - {PADDING} for part in plan] for plan in plans]
    assert members[0] == members[1] == members[2]


def test_ranks_are_balanced_by_tokens() -> None:
    lengths = [100, 10, 90, 20]
    ((one, other),) = plan_mini_batches(lengths, 4, 2, seed=0)
    assert sum(lengths[i] for i in one) == sum(lengths[i] for i in other)


@pytest.mark.parametrize(("lengths", "size", "dp"), [([], 4, 1), ([3], 0, 1), ([3], 4, 0)])
def test_a_plan_of_nothing_is_refused(lengths: list[int], size: int, dp: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        plan_mini_batches(lengths, size, dp, seed=0)


def test_pack_keeps_tokens_and_silences_padding(make_samples: Callable) -> None:
    sample, other = make_samples(2, seed=5)
    batch = pack([sample, other, sample.as_padding()])
    rows = batch["input_ids"].unbind()
    assert rows[0].tolist() == [*sample.prompt_ids, *sample.response_ids]
    assert [len(row) for row in rows] == [sample.length, other.length, 2]
    assert [int(row.sum()) for row in batch["response_mask"].unbind()] == [
        len(sample.response_ids),
        len(other.response_ids),
        0,
    ]
    assert batch["position_ids"].unbind()[1].tolist() == list(range(other.length))
    assert torch.equal(batch["advantages"].unbind()[1], torch.tensor(other.tokens["advantages"]))
    np.testing.assert_allclose(batch["trust"], [sample.scalars["trust"], other.scalars["trust"], 0.0], rtol=1e-6)


def test_every_rank_gets_the_same_number_of_rows(make_samples: Callable, make_auxiliary: Callable) -> None:
    shares = plan_update(make_samples(7, 0), make_auxiliary([1.0], 0), mini_batch_size=4, dp=3, seed=0)
    assert len({tuple(len(rows) for rows in share.mini_batches) for share in shares}) == 1
    assert [len(share.auxiliary) for share in shares] == [1, 1, 1]
    assert sum(not row.padding for share in shares for row in share.auxiliary) == 1
    assert shares[0].sizes == [4, 3]


def _sample(prompt: int = 3, response: int = 2, **fields: int) -> Sample:
    tokens = {name: np.zeros(length, np.float32) for name, length in fields.items()}
    return Sample(np.zeros(prompt, np.int32), np.zeros(response, np.int32), tokens)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([_sample(), _sample(response=0)], "sample 1 has an empty prompt or response"),
        ([_sample(prompt=0)], "sample 0 has an empty prompt or response"),
        ([_sample(prompt=30)], "sample 0 has 32 tokens but a micro-batch holds 16"),
        ([_sample(advantages=3)], "'advantages' has 3 values for 2 tokens"),
        ([_sample(advantages=2), _sample()], "sample 1 has other fields"),
        ([_sample(responses=2)], "'responses' is reserved"),
    ],
)
def test_bad_samples_are_named(samples: list[Sample], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_samples(samples, "sample", max_tokens=16)
