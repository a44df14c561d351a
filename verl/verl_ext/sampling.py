"""Per-request sampling settings and the sampling of one token for each row of a batch."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


class SamplingError(ValueError):
    """A request asks for something that cannot be done; the message says what and what to do."""


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How one response is sampled.

    Attributes:
        max_tokens: response budget in tokens, the end-of-turn token included; at least 1.
        temperature: 0 is greedy.
        top_p: keep the smallest set of most likely tokens whose mass reaches it; 1 keeps all.
        top_k: keep that many most likely tokens; 0 keeps all.
        seed: makes the request reproducible, whatever else is in the batch (up to float rounding).
        ignore_eos: do not stop at the model's end-of-sequence tokens.
        stop_token_ids: further tokens that end the response.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise SamplingError(f"max_tokens is {self.max_tokens}; it must be at least 1")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise SamplingError(f"temperature is {self.temperature}; it must be 0 (greedy) or a positive number")
        if not 0 < self.top_p <= 1:
            raise SamplingError(f"top_p is {self.top_p}; it must be in (0, 1]")
        if self.top_k < 0:
            raise SamplingError(f"top_k is {self.top_k}; it must be 0 (all tokens) or a positive number")

    @classmethod
    def from_params(cls, params: Mapping[str, Any], default_max_tokens: int) -> SamplingSettings:
        """Read veRL's dict of sampling parameters, as its vLLM server takes it.

        ``logprobs`` is accepted and ignored (log-probabilities are always returned); ``top_k`` -1 means all tokens;
        ``repetition_penalty`` and ``n`` only with their neutral value 1.

        Raises:
            SamplingError: an unknown parameter, or a value out of range.
        """
        values = {name: value for name, value in params.items() if value is not None}
        values.pop("logprobs", None)
        for name in ("repetition_penalty", "n"):
            if values.pop(name, 1) != 1:
                raise SamplingError(f"{name} is {params[name]}; the cpu rollout backend supports only 1")
        if "max_new_tokens" in values:
            values.setdefault("max_tokens", values.pop("max_new_tokens"))
        values.setdefault("max_tokens", default_max_tokens)
        values["top_k"] = max(0, int(values.get("top_k", 0)))
        values["stop_token_ids"] = tuple(values.get("stop_token_ids", ()))
        unknown = sorted(set(values) - set(cls.__slots__))
        if unknown:
            raise SamplingError(f"unknown sampling parameters {unknown}; the cpu rollout backend knows {_KNOWN}")
        return cls(**values)


_KNOWN = sorted({*SamplingSettings.__slots__, "logprobs", "max_new_tokens", "n", "repetition_penalty"})


class BatchSampler:
    """Samples one token per row; built anew whenever the rows of the batch change.

    Each row draws from its own stream (a ``random.Random`` per request, one number per token), so its tokens do not
    depend on its neighbours. Sampling inverts the cumulative distribution, one draw whatever the vocabulary.
    """

    def __init__(self, settings: Sequence[SamplingSettings], streams: Sequence[random.Random]):
        self._streams = streams
        self._greedy = torch.tensor([s.temperature == 0 for s in settings])
        self._temperature = torch.tensor([[s.temperature or 1.0] for s in settings], dtype=torch.float32)
        self._scaled = any(s.temperature not in (0, 1) for s in settings)
        self._truncated = [(row, s) for row, s in enumerate(settings) if s.temperature and (s.top_p < 1 or s.top_k)]

    def sample(self, logits: torch.Tensor) -> tuple[list[int], list[float]]:
        """Draw a token per row.

        Args:
            logits: [n, vocabulary], any float dtype.

        Returns:
            The tokens, and their log-probabilities under ``log_softmax(logits / temperature)`` in float32
            (temperature 1 for greedy rows; not renormalised by top_p and top_k, as the actor computes them).
            A row whose logits are not finite has log-probability NaN and a meaningless token.
        """
        logits = logits.float()
        if self._scaled:
            logits = logits / self._temperature
        log_probs = torch.log_softmax(logits, dim=-1)
        tokens = log_probs.argmax(dim=-1)
        if not self._greedy.all():
            tokens = torch.where(self._greedy, tokens, self._draw(log_probs))
        chosen = log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1)
        return tokens.tolist(), chosen.tolist()

    def _draw(self, log_probs: torch.Tensor) -> torch.Tensor:
        probs = log_probs.exp()
        for row, settings in self._truncated:
            probs[row] = _truncate(probs[row], settings)
        cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
        uniform = torch.tensor([[stream.random()] for stream in self._streams], dtype=torch.float64)
        tokens = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True).squeeze(1)
        return tokens.clamp_(max=log_probs.shape[1] - 1)  # only a row of NaN gets that far


def _truncate(probs: torch.Tensor, settings: SamplingSettings) -> torch.Tensor:
    """Zero the tokens outside top_k, then outside top_p of what is left; [vocabulary] -> [vocabulary]."""
    ordered, order = probs.sort(descending=True)
    if settings.top_k:
        ordered[settings.top_k :] = 0
    if settings.top_p < 1:
        before = ordered.cumsum(dim=-1, dtype=torch.float64) - ordered
        ordered[before >= settings.top_p * ordered.sum()] = 0
    return torch.zeros_like(probs).scatter_(0, order, ordered)
