"""Importance weights for responses whose server computes a little differently from the trainer: veRL's rollout correction.

A server in bf16, with other kernels, samples from a policy that is not exactly the one that is trained. veRL weighs each
token's policy gradient by min(pi_train / pi_rollout, threshold). Off unless ``algorithm.rollout_correction.rollout_is`` is set.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from omegaconf import DictConfig
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

FIELD = "rollout_is_weights"
"""The token field that veRL's PPO loss reads."""


def correction_weights(
    trained: Sequence[np.ndarray], rollout: Sequence[np.ndarray], settings: DictConfig
) -> tuple[list[np.ndarray], dict[str, float]]:
    """The weights of every response token, and veRL's measures of the mismatch (``rollout_corr/...``).

    Args:
        trained: log-probabilities of the policy before the update, float32 [R] each.
        rollout: the servers', float32 [R] each.
        settings: ``algorithm.rollout_correction``; ``rollout_is`` is ``token`` or ``sequence``.

    Returns:
        float32 [R] per response.
    """
    lengths = torch.tensor([len(values) for values in trained])
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    weights, _, metrics = compute_rollout_correction_and_rejection_mask(
        _padded(trained),
        _padded(rollout),
        mask.float(),
        rollout_is=settings.rollout_is,
        rollout_is_threshold=settings.rollout_is_threshold,
        rollout_is_batch_normalize=settings.rollout_is_batch_normalize,
    )
    assert weights is not None  # veRL returns None only without rollout_is
    rows = weights.batch[FIELD]
    return [row[:length].numpy() for row, length in zip(rows, lengths.tolist(), strict=True)], metrics


def _padded(values: Sequence[np.ndarray]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.from_numpy(np.asarray(row)) for row in values], batch_first=True)
