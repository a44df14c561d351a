from __future__ import annotations

import functools
import pickle

import pytest
import torch

from rsipo.losses import gated_distillation, skill_policy_gradient

BETA = 5.0


def batch(seed: int = 0):
    """Three samples of up to four tokens; the last one has no teacher."""
    generator = torch.Generator().manual_seed(seed)
    student = -torch.rand(3, 4, generator=generator, dtype=torch.float64)
    fields = {
        "teacher_log_prob": -torch.rand(3, 4, generator=generator, dtype=torch.float64),
        "trust": torch.tensor([1.5, 0.25, 2.0], dtype=torch.float64),
        "has_teacher": torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64),
    }
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)
    return student.requires_grad_(), mask, fields


def test_terms_by_hand():
    student = torch.tensor([[-1.0, -0.5]])
    fields = {
        "teacher_log_prob": torch.tensor([[-0.8, -0.9]]),
        "trust": torch.tensor([1.5]),
        "has_teacher": torch.tensor([1.0]),
    }
    term, metrics = gated_distillation(student, torch.ones(1, 2, dtype=torch.bool), fields, beta=5.0)
    gates = torch.tensor([[0.7310586, 0.1192029]])  # sigmoid(1), sigmoid(-2)
    assert torch.allclose(metrics["gate"], gates)
    assert torch.allclose(metrics["gap"], torch.tensor([[0.2, -0.4]]))
    assert torch.allclose(term, 1.5 * gates * torch.tensor([[0.2, -0.4]]))


def test_gradient_is_minus_trust_times_gate_over_n():
    student, mask, fields = batch()
    term, metrics = gated_distillation(student, mask, fields, beta=BETA)
    count = mask.sum()
    (term.sum() / count).backward()
    gate = torch.sigmoid(BETA * (fields["teacher_log_prob"] - student.detach()))
    active = mask & (fields["has_teacher"] > 0)[:, None]
    assert torch.allclose(student.grad, -fields["trust"][:, None] * gate * active / count)
    assert torch.equal(metrics["active"].bool(), active)
    assert not any(value.requires_grad for value in metrics.values())


def test_teacher_is_a_constant():
    student, mask, fields = batch()
    fields["teacher_log_prob"].requires_grad_()
    gated_distillation(student, mask, fields)[0].sum().backward()
    assert fields["teacher_log_prob"].grad is None


def test_trust_one_is_bitwise_the_unweighted_term():
    student, mask, fields = batch()
    fields["trust"] = torch.ones(3, dtype=torch.float64)
    term, _ = gated_distillation(student, mask, fields, beta=BETA)
    gap = fields["teacher_log_prob"] - student
    plain = torch.sigmoid(BETA * gap.detach()) * gap
    active = mask & (fields["has_teacher"] > 0)[:, None]
    assert torch.equal(term[active], plain[active])


def test_equal_log_probabilities_give_no_term_but_half_a_gate():
    student, mask, fields = batch()
    fields["teacher_log_prob"] = student.detach().clone()
    term, metrics = gated_distillation(student, mask, fields)
    assert torch.equal(term, torch.zeros_like(term))
    assert torch.equal(metrics["gate"], 0.5 * metrics["active"])


def test_nothing_leaks_from_inactive_positions():
    student, mask, fields = batch()
    active = mask & (fields["has_teacher"] > 0)[:, None]
    fields["teacher_log_prob"] = torch.where(active, fields["teacher_log_prob"], torch.tensor(float("nan")))
    with torch.no_grad():
        student[~mask] = float("-inf")
    term, metrics = gated_distillation(student, mask, fields)
    term.sum().backward()
    for value in (term, student.grad, *metrics.values()):
        assert torch.isfinite(value).all()
        assert (value[~active] == 0).all()


def test_zero_trust_switches_a_task_off():
    student, mask, fields = batch()
    fields["trust"] = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
    gated_distillation(student, mask, fields)[0].sum().backward()
    assert (student.grad[0] == 0).all()
    assert (student.grad[1] != 0).all()


def skill_batch():
    student, mask, _ = batch(1)
    fields = {
        "skill_mask": torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]], dtype=torch.float64),
        "skill_reward": torch.tensor([0.4, -0.2, 0.7], dtype=torch.float64),
        "num_tasks": torch.full((3,), 16.0, dtype=torch.float64),
    }
    return student, mask, fields


def test_skill_loss_by_hand():
    log_prob = torch.tensor([[-1.0, -2.0, -4.0]])
    fields = {
        "skill_mask": torch.tensor([[0.0, 1.0, 1.0]]),
        "skill_reward": torch.tensor([0.5]),
        "num_tasks": torch.tensor([4.0]),
    }
    value = skill_policy_gradient(log_prob, torch.ones(1, 3, dtype=torch.bool), fields)
    assert value.tolist() == pytest.approx([0.5 * 3.0 / 4])


def test_skill_gradient_is_minus_reward_times_mask_over_count_and_tasks():
    student, mask, fields = skill_batch()
    skill_policy_gradient(student, mask, fields).sum().backward()
    chosen = (fields["skill_mask"] * mask).double()
    count = chosen.sum(-1, keepdim=True).clamp(min=1)
    assert torch.allclose(student.grad, -fields["skill_reward"][:, None] * chosen / (count * 16))


def test_skill_loss_does_not_depend_on_the_micro_batch():
    student, mask, fields = skill_batch()
    whole = skill_policy_gradient(student, mask, fields)
    parts = [
        skill_policy_gradient(
            student[i : i + 1, :3],
            mask[i : i + 1, :3],
            {k: v[i : i + 1, ..., :3] if v.dim() > 1 else v[i : i + 1] for k, v in fields.items()},
        )
        for i in (0, 2)
    ]
    assert torch.equal(torch.cat(parts), whole[[0, 2]])


def test_zero_reward_gives_exactly_no_gradient():
    student, mask, fields = skill_batch()
    fields["skill_reward"] = torch.zeros(3, dtype=torch.float64)
    skill_policy_gradient(student, mask, fields).sum().backward()
    assert torch.equal(student.grad, torch.zeros_like(student))


def test_functions_can_be_sent_to_workers():
    student, mask, fields = batch()
    sent = pickle.loads(pickle.dumps(functools.partial(gated_distillation, beta=2.0)))
    assert torch.equal(sent(student, mask, fields)[0], gated_distillation(student, mask, fields, beta=2.0)[0])
    assert pickle.loads(pickle.dumps(skill_policy_gradient)) is skill_policy_gradient
