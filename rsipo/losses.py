"""The two losses RSIPO adds to PPO, as plain functions of log-probabilities. The only module here that needs torch.

Both are module-level, so a ``functools.partial`` of them can be pickled and sent to the workers.
Shapes: B samples of the micro-batch, R response positions (right-padded).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def gated_distillation(
    log_prob: Tensor, mask: Tensor, fields: Mapping[str, Tensor], *, beta: float = 5.0
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token OPSD terms of eq. (2), weighted by the task's trust as in eq. (12).

    Summed and divided by N, the number of all response tokens of the mini-batch, the gradient with respect to one
    ``log_prob`` is ``-trust * gate / N``: every sampled token is pushed up, the more the teacher prefers it.

    Args:
        log_prob: float [B, R], of the student, with gradient.
        mask: bool [B, R], the response tokens.
        fields: ``teacher_log_prob`` float [B, R]; ``trust`` float [B]; ``has_teacher`` [B], 1 where a valid skill gave
            the sample a teacher, else 0.
        beta: sharpness of the gate.

    Returns:
        The terms [B, R], exactly zero outside the mask and without a teacher, and metrics [B, R]: ``gate`` and ``gap``
        (teacher minus student log-probability), zero where inactive, and ``active`` (1 where the term applies).
    """
    active = mask & (fields["has_teacher"] > 0).unsqueeze(-1)
    # Inactive positions get a gap of zero, so that whatever stands there can reach neither value nor gradient.
    student = torch.where(active, log_prob, torch.zeros_like(log_prob))
    teacher = torch.where(active, fields["teacher_log_prob"].detach(), torch.zeros_like(log_prob))
    gate = torch.sigmoid(beta * (teacher - student.detach()))
    gap = teacher - student
    term = fields["trust"].unsqueeze(-1) * (gate * gap)

    metrics = {"gate": gate * active, "gap": gap.detach(), "active": active.to(gate.dtype)}
    return term, metrics


def skill_policy_gradient(log_prob: Tensor, mask: Tensor, fields: Mapping[str, Tensor]) -> Tensor:
    """Each sample's share of the skill loss, eq. (9) and (10); the loss is their sum over all samples of the batch.

    The gradient with respect to one ``log_prob`` is ``-reward * skill_mask / (masked tokens * num_tasks)``.

    Args:
        log_prob: float [B, R], of the written analysis, with gradient.
        mask: bool [B, R], the response tokens.
        fields: ``skill_mask`` [B, R], 1 on the skill's tokens (all tokens of an invalid output); ``skill_reward``
            float [B]; ``num_tasks`` [B], |X|: the tasks of the whole batch, those without a skill included.

    Returns:
        Contributions [B]; zero for a padding sample (reward 0).
    """
    chosen = mask & (fields["skill_mask"] > 0)
    total = torch.where(chosen, log_prob, torch.zeros_like(log_prob)).sum(-1)
    mean = total / chosen.sum(-1).clamp(min=1)
    return -fields["skill_reward"] * mean / fields["num_tasks"]
