"""The policy loss: veRL's PPO loss plus extra terms handed in as plain torch functions.

Every denominator is global (all data-parallel ranks), so a loss does not depend on micro-batches or on the number of
ranks. FSDP averages gradients over the ranks; what is summed here is therefore multiplied by their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils.metric import AggregationType, Metric
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

Fields = Mapping[str, Tensor]
TokenFunction = Callable[[Tensor, Tensor, Fields], tuple[Tensor, dict[str, Tensor]]]
SampleFunction = Callable[[Tensor, Tensor, Fields], Tensor]


@dataclass(frozen=True)
class TokenTerm:
    """A per-token loss term: ``coefficient / N * sum over the tokens of fn``.

    N is the number of all response tokens of the mini-batch over all ranks. A coefficient of 0 leaves the term out.

    Attributes:
        name: prefix of its metrics.
        fn: picklable; (log_prob float32 [B, R], mask bool [B, R], fields) -> (term [B, R], metrics). Fields are
            float32, [B, R] (per token) or [B] (per sample). Each metric is [B, R] and logged as its mean over the N
            tokens, or as its maximum when its name ends in ``_max``. Values outside the mask are ignored but must be
            finite. Padding rows never reach it.
        coefficient: its weight in the loss.
        fields: the fields of ``Sample.tokens`` and ``Sample.scalars`` it reads.
    """

    name: str
    fn: TokenFunction
    coefficient: float
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class AuxiliaryLoss:
    """A loss on samples of its own, whose gradient joins the last PPO mini-batch: ``sum over the samples of fn``.

    Attributes:
        name: prefix of its metrics.
        fn: picklable; (log_prob float32 [B, R], mask bool [B, R], fields) -> loss contribution [B], any global
            denominator included. Padding rows never reach it.
        fields: the fields of ``Sample.tokens`` and ``Sample.scalars`` it reads.
    """

    name: str
    fn: SampleFunction
    fields: tuple[str, ...] = ()

    def __call__(
        self, model_output: Mapping[str, Tensor], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Metric]]:
        """The loss of one micro-batch, in the form veRL's engine calls."""
        log_prob, mask, fields = _real_rows(model_output, data, self.fields)
        # An all-padding micro-batch still takes part in the backward pass, so that no rank misses a collective.
        loss = (
            self.fn(log_prob, mask, fields).sum() if len(log_prob) else model_output["log_probs"].values().sum() * 0.0
        )
        return loss * data["dp_size"], {f"{self.name}/loss": _total(loss)}


class PolicyLoss:
    """veRL's PPO loss (clip, entropy, KL to the reference) plus token terms.

    Args:
        config: veRL's actor configuration.
        terms: extra terms; those with coefficient 0 are dropped.
    """

    def __init__(self, config: ActorConfig, terms: Sequence[TokenTerm] = ()) -> None:
        self.config = config
        self.terms = tuple(term for term in terms if term.coefficient != 0)

    @property
    def needs_entropy(self) -> bool:
        """Whether the engine has to compute the entropy of every token."""
        return bool(self.config.calculate_entropy) or self.config.entropy_coeff != 0

    def __call__(
        self, model_output: Mapping[str, Tensor], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Metric]]:
        """The loss of one micro-batch and its metrics, in the form veRL's engine calls."""
        loss, verl_metrics = ppo_loss(self.config, model_output, data, dp_group)
        dp_size, num_tokens = data["dp_size"], data["batch_num_tokens"]
        metrics = {
            name: _total(verl_metrics[verl_name].aggregate() / dp_size)
            for verl_name, name in _VERL_METRICS.items()
            if verl_name in verl_metrics
        }
        log_prob, mask, fields = _real_rows(model_output, data, ("old_log_probs", "advantages", *self._field_names()))
        metrics |= _ppo_metrics(log_prob.detach(), mask, fields, self.config, num_tokens)
        for term in self.terms if len(log_prob) else ():
            values, details = term.fn(log_prob, mask, {name: fields[name] for name in term.fields})
            value = torch.where(mask, values, 0.0).sum() / num_tokens
            loss = loss + term.coefficient * value * dp_size
            metrics[f"{term.name}/loss"] = _total(value)
            for name, detail in details.items():
                metrics[f"{term.name}/{name}"] = _token_metric(name, detail.detach(), mask, num_tokens)
        metrics["loss"] = _total(loss / dp_size)
        return loss, metrics

    def _field_names(self) -> list[str]:
        return sorted({name for term in self.terms for name in term.fields} - {"old_log_probs", "advantages"})


_VERL_METRICS = {
    "actor/pg_loss": "ppo/policy_loss",
    "actor/entropy_loss": "ppo/entropy",
    "kl_loss": "ppo/kl_to_reference",
}
"""What is kept of veRL's own metrics: those with a global denominator."""


def _real_rows(
    model_output: Mapping[str, Tensor], data: TensorDict, names: Sequence[str]
) -> tuple[Tensor, Tensor, Fields]:
    """Log-probabilities [B', R], response mask [B', R] and fields of the rows that are not padding."""
    padded = data.select("response_mask", *names).to_padded_tensor()
    mask = padded["response_mask"].to(torch.bool)
    real = mask.any(dim=-1)
    log_prob = no_padding_2_padding(model_output["log_probs"], data).float()
    return log_prob[real], mask[real], {name: padded[name][real] for name in names}


def _ppo_metrics(
    log_prob: Tensor, mask: Tensor, fields: Fields, config: ActorConfig, num_tokens: int
) -> dict[str, Metric]:
    """Ratio, approximate KL to the sampling policy, and clip fraction, over the N tokens of the mini-batch."""
    # Clamped as in veRL's own loss.
    log_ratio = (log_prob - fields["old_log_probs"]).clamp(-20.0, 20.0)
    ratio, advantages = log_ratio.exp(), fields["advantages"]
    low = config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low
    high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high
    clipped = ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))
    values = {
        "ratio_mean": ratio,
        "ratio_max": ratio,
        "approx_kl": ratio - 1 - log_ratio,
        "clip_fraction": clipped.float(),
    }
    return {f"ppo/{name}": _token_metric(name, value, mask, num_tokens) for name, value in values.items()}


def _token_metric(name: str, values: Tensor, mask: Tensor, num_tokens: int) -> Metric:
    if name.endswith("_max"):
        top = values[mask].max() if mask.any() else float("-inf")
        return Metric(AggregationType.MAX, top)
    return _total(torch.where(mask, values, 0.0).sum() / num_tokens)


def _total(value: Tensor | float) -> Metric:
    """This micro-batch's share of a value that is summed over micro-batches and ranks."""
    return Metric(AggregationType.SUM, value)
