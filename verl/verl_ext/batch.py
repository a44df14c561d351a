"""From ragged turn samples to veRL's padding-free batches, and the plan of mini-batches and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

PADDING = -1
"""Stands for a zero-weight padding row where a plan holds row indices."""

_RESERVED = frozenset(
    {"prompts", "responses", "input_ids", "position_ids", "response_mask", "loss_mask", "temperature"}
)


@dataclass(slots=True)
class Sample:
    """One prompt and one response with what the losses need to know about it.

    Attributes:
        prompt_ids: int32 [P], P >= 1.
        response_ids: int32 [R], R >= 1; every response token is trained on.
        tokens: name -> float32 [R], one value per response token (``old_log_probs``, ``advantages``, …).
        scalars: name -> float, one value per sample.
        padding: a zero-weight row that only keeps the ranks in step.
    """

    prompt_ids: np.ndarray
    response_ids: np.ndarray
    tokens: dict[str, np.ndarray] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    padding: bool = False

    @property
    def length(self) -> int:
        """Tokens of prompt and response."""
        return len(self.prompt_ids) + len(self.response_ids)

    def as_padding(self) -> Sample:
        """The smallest padding row with the fields of this sample: one prompt and one response token."""
        zero = np.zeros(1, np.float32)
        return Sample(
            prompt_ids=self.prompt_ids[:1],
            response_ids=self.response_ids[:1],
            tokens=dict.fromkeys(self.tokens, zero),
            scalars=dict.fromkeys(self.scalars, 0.0),
            padding=True,
        )


def check_samples(samples: Sequence[Sample], what: str, max_tokens: int | None = None) -> None:
    """Find every sample a worker would choke on, before any worker sees it.

    Args:
        samples: the samples of one batch.
        what: their name in the message, e.g. ``"PPO sample"``.
        max_tokens: longest sequence (prompt + response) that fits a micro-batch; None = no limit.

    Raises:
        ValueError: an empty or too long sequence, a field of another length, or fields that differ between samples.
    """
    for index, sample in enumerate(samples):
        if not len(sample.prompt_ids) or not len(sample.response_ids):
            raise ValueError(f"{what} {index} has an empty prompt or response; leave it out of the batch")
        if max_tokens is not None and sample.length > max_tokens:
            raise ValueError(
                f"{what} {index} has {sample.length} tokens but a micro-batch holds {max_tokens}: "
                "shorten the prompt or raise the token budget per GPU"
            )
        for name, values in sample.tokens.items():
            if len(values) != len(sample.response_ids):
                raise ValueError(
                    f"{what} {index}: field {name!r} has {len(values)} values for {len(sample.response_ids)} tokens"
                )
        if sample.tokens.keys() != samples[0].tokens.keys() or sample.scalars.keys() != samples[0].scalars.keys():
            raise ValueError(f"{what} {index} has other fields than {what} 0: give every sample the same fields")
        if clash := _RESERVED & (sample.tokens.keys() | sample.scalars.keys()):
            raise ValueError(f"{what} {index}: the field name {min(clash)!r} is reserved")


def plan_mini_batches(lengths: Sequence[int], mini_batch_size: int, dp: int, seed: int) -> list[list[list[int]]]:
    """Form mini-batches over all samples, then split each over the data-parallel ranks.

    The samples of a mini-batch depend on ``seed`` only, so the gradient does not depend on the number of ranks. Within
    a mini-batch every rank gets the same number of rows (some may be padding), balanced by tokens.

    Args:
        lengths: tokens of each sample.
        mini_batch_size: at most this many samples in a mini-batch; the parts are as equal as possible.
        dp: number of data-parallel ranks.
        seed: of the shuffle.

    Returns:
        ``plan[mini_batch][rank]`` = row indices, ``PADDING`` for a padding row.

    Raises:
        ValueError: no sample, or a size below one.
    """
    if not lengths or mini_batch_size < 1 or dp < 1:
        raise ValueError(
            f"cannot plan mini-batches of {mini_batch_size} from {len(lengths)} samples on {dp} ranks: "
            "each number must be positive"
        )
    order = np.random.default_rng(seed).permutation(len(lengths))
    parts = np.array_split(order, -(-len(lengths) // mini_batch_size))
    return [_split_over_ranks(part.tolist(), lengths, dp) for part in parts]


def _split_over_ranks(rows: list[int], lengths: Sequence[int], dp: int) -> list[list[int]]:
    """Longest first, each to the rank with the fewest tokens among those with room left."""
    rows_per_rank = -(-len(rows) // dp)
    ranks: list[list[int]] = [[] for _ in range(dp)]
    tokens = [0] * dp
    for row in sorted(rows, key=lambda index: (-lengths[index], index)):
        rank = min((r for r in range(dp) if len(ranks[r]) < rows_per_rank), key=lambda r: (tokens[r], len(ranks[r]), r))
        ranks[rank].append(row)
        tokens[rank] += lengths[row]
    return [rank + [PADDING] * (rows_per_rank - len(rank)) for rank in ranks]


def rows_per_rank(samples: Sequence[Sample], ranks: Sequence[Sequence[int]]) -> list[list[Sample]]:
    """The rows of one planned mini-batch, rank by rank, padding rows filled in."""
    filler = samples[0].as_padding()
    return [[filler if index == PADDING else samples[index] for index in rank] for rank in ranks]


@dataclass(slots=True)
class RankUpdate:
    """One rank's share of an update.

    Attributes:
        mini_batches: rows of each PPO mini-batch, equally many on every rank.
        sizes: real samples of each mini-batch over all ranks.
        auxiliary: rows of the auxiliary batch; empty on every rank when there is none.
        temperature: of the log-probabilities.
    """

    mini_batches: list[list[Sample]]
    sizes: list[int]
    auxiliary: list[Sample] = field(default_factory=list)
    temperature: float = 1.0


def plan_update(
    samples: Sequence[Sample],
    auxiliary: Sequence[Sample],
    *,
    mini_batch_size: int,
    dp: int,
    seed: int,
    temperature: float = 1.0,
) -> list[RankUpdate]:
    """The share of every data-parallel rank in one pass over ``samples`` (see :func:`plan_mini_batches`)."""
    plan = plan_mini_batches([sample.length for sample in samples], mini_batch_size, dp, seed)
    sizes = [sum(index != PADDING for rank in part for index in rank) for part in plan]
    parts = [rows_per_rank(samples, part) for part in plan]
    extra: list[list[Sample]] = [[] for _ in range(dp)]
    if auxiliary:
        lengths = [sample.length for sample in auxiliary]
        extra = rows_per_rank(auxiliary, plan_mini_batches(lengths, len(lengths), dp, seed)[0])
    return [RankUpdate([part[rank] for part in parts], sizes, extra[rank], temperature) for rank in range(dp)]


def pack(rows: Sequence[Sample]) -> TensorDict:
    """Rows as the padding-free batch veRL's engine takes.

    Args:
        rows: B >= 1 samples with the same fields.

    Returns:
        TensorDict of B rows: jagged ``prompts``, ``responses``, ``input_ids``, ``position_ids`` (int64);
        ``response_mask`` and ``loss_mask`` (int64, jagged, 1 on every response token, 0 on padding rows); each token
        field (float32, jagged) and each scalar field (float32 [B]).
    """
    prompts = [_ids(row.prompt_ids) for row in rows]
    responses = [_ids(row.response_ids) for row in rows]
    sequences = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    mask = _jagged([torch.full_like(ids, int(not row.padding)) for ids, row in zip(responses, rows, strict=True)])
    tensors: dict[str, torch.Tensor | list] = {
        "prompts": _jagged(prompts),
        "responses": _jagged(responses),
        "input_ids": _jagged(sequences),
        "position_ids": _jagged([torch.arange(len(sequence)) for sequence in sequences]),
        "response_mask": mask,
        "loss_mask": mask.clone(),
    }
    for name in rows[0].tokens:
        tensors[name] = _jagged([torch.tensor(row.tokens[name], dtype=torch.float32) for row in rows])
    for name in rows[0].scalars:
        tensors[name] = torch.tensor([row.scalars[name] for row in rows], dtype=torch.float32)
    return tu.get_tensordict(tensors)


def _ids(ids: np.ndarray) -> torch.Tensor:
    return torch.tensor(np.asarray(ids, dtype=np.int64))


def _jagged(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)
