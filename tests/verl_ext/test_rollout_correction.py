"""veRL's importance weights on ragged responses."""

from __future__ import annotations

import numpy as np
import pytest
from omegaconf import OmegaConf

from verl_ext.rollout_correction import correction_weights

SETTINGS = {"rollout_is": "token", "rollout_is_threshold": 2.0, "rollout_is_batch_normalize": False}


def test_each_token_is_weighed_by_its_ratio_up_to_the_threshold() -> None:
    trained = [np.array([-1.0, -2.0], np.float32), np.array([-0.5, -0.7, -3.0], np.float32)]
    rollout = [np.array([-1.1, -1.8], np.float32), np.array([-0.5, -2.7, -3.5], np.float32)]
    weights, metrics = correction_weights(trained, rollout, OmegaConf.create(SETTINGS))
    for row, one, other in zip(weights, trained, rollout, strict=True):
        assert row.dtype == np.float32
        np.testing.assert_allclose(row, np.minimum(np.exp(one - other), 2.0), rtol=1e-6)
    assert metrics["rollout_corr/rollout_is_max"] == 2.0


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_the_loss_takes_the_weights(weight: float) -> None:
    import torch
    from verl.utils import tensordict_utils as tu
    from verl.workers.config import FSDPActorConfig

    from verl_ext.batch import Sample, pack
    from verl_ext.losses import PolicyLoss

    def loss(**fields: np.ndarray) -> float:
        old, advantages = np.array([-1.0, -2.0], np.float32), np.array([1.0, 0.5], np.float32)
        row = Sample(np.array([1, 2]), np.array([3, 4]), {"old_log_probs": old, "advantages": advantages, **fields})
        data = pack([row])
        tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=2, global_batch_size=1)
        log_probs = torch.nested.as_nested_tensor([torch.tensor([0.0, -1.0, -2.0, 0.0])], layout=torch.jagged)
        config = FSDPActorConfig(rollout_n=1, ppo_micro_batch_size_per_gpu=1, strategy="fsdp2")
        return float(PolicyLoss(config)({"log_probs": log_probs}, data)[0])

    plain = loss()
    assert plain == pytest.approx(-0.75)
    assert loss(rollout_is_weights=np.full(2, weight, np.float32)) == pytest.approx(weight * plain)
