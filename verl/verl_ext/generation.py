"""Continuous batching over a Hugging Face causal language model.

Requests join and leave the batch at token boundaries: waiting ones are prefilled together (left padding, explicit
position ids), then every running row decodes one token per forward pass. Only the generic model interface is used
(``past_key_values``, a 2-d attention mask, ``position_ids``), so any decoder with an ordinary key/value cache works.
"""

from __future__ import annotations

import inspect
import math
import random
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from transformers import DynamicCache, PreTrainedModel

from verl_ext.kv_cache import KVWindow
from verl_ext.sampling import BatchSampler, SamplingError, SamplingSettings

StopReason = Literal["completed", "length", "aborted"]


class GenerationError(RuntimeError):
    """The model failed while it worked on a request."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One response.

    Attributes:
        token_ids: the sampled tokens, a final end-of-sequence token included.
        log_probs: their log-probabilities, ``log_softmax(logits / temperature)`` in float32.
        stop_reason: completed (a stop token), length (the budget), aborted (what there was at that moment).
        version: of the weights that produced it; all tokens of a response come from one version.
    """

    token_ids: list[int]
    log_probs: list[float]
    stop_reason: StopReason
    version: int


@dataclass(slots=True, eq=False)
class Request:
    """A prompt on its way to ``future``, which receives a ``Completion`` or an exception."""

    prompt_ids: list[int]
    settings: SamplingSettings
    stop_ids: frozenset[int]
    stream: random.Random
    future: Future[Completion] = field(default_factory=Future)
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    @property
    def most_tokens(self) -> int:
        return len(self.prompt_ids) + self.settings.max_tokens

    def stopped(self) -> StopReason | None:
        if self.token_ids[-1] in self.stop_ids:
            return "completed"
        return "length" if len(self.token_ids) >= self.settings.max_tokens else None


class ContinuousBatcher:
    """Generates responses to many requests at once. Not thread-safe: one thread calls ``submit``, ``step`` and so on.

    Args:
        model: a causal language model in eval mode, float32 or bfloat16.
        eos_ids: token ids that end a response.
        context_length: most tokens of prompt and response together.
        max_rows: most responses in progress at once.
        max_total_tokens: bound on the key/value memory: rows in progress times the longest of them (its prompt plus
            its ``max_tokens``). Requests beyond either bound wait, first come first served.
        max_prefill_tokens: most padded prompt tokens in one prefill pass (a longer single prompt passes alone).
        version: of the weights the model holds now.

    Raises:
        ValueError: the model keeps another state than keys and values, such as a recurrent one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        eos_ids: Collection[int],
        *,
        context_length: int,
        max_rows: int = 256,
        max_total_tokens: int = 1 << 20,
        max_prefill_tokens: int = 8192,
        version: int = -1,
    ):
        if getattr(model, "_is_stateful", False):
            raise ValueError(
                f"{type(model).__name__} keeps a recurrent state; only key/value caches can be batched here"
            )
        self.model = model
        self.version = version
        self._eos_ids = frozenset(eos_ids)
        self._context_length = context_length
        self._max_rows = max_rows
        self._max_total_tokens = max_total_tokens
        self._max_prefill_tokens = max_prefill_tokens
        self._vocabulary = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[index]
        self._last_logits: dict[str, Any] = (
            {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
        )
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._window = KVWindow()
        self._sampler: BatchSampler | None = None

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def make_request(self, prompt_ids: Sequence[int], settings: SamplingSettings) -> Request:
        """Check a request; touches no state, so any thread may call it.

        ``max_tokens`` is cut to what the context leaves, as veRL's vLLM server does.

        Raises:
            SamplingError: an empty prompt, one that leaves no room for a token, ids outside the vocabulary, or a
                request beyond the key/value memory.
        """
        room = self._context_length - len(prompt_ids)
        if not len(prompt_ids):
            raise SamplingError("the prompt is empty; give at least one token id")
        if room < 1:
            raise SamplingError(
                f"the prompt has {len(prompt_ids)} tokens, but the model's context is {self._context_length} and a "
                "response needs at least 1; shorten the prompt or raise rollout.max_model_len"
            )
        prompt = [int(token) for token in prompt_ids]
        if min(prompt) < 0 or max(prompt) >= self._vocabulary:
            raise SamplingError(
                f"prompt token ids must be in [0, {self._vocabulary}), got {min(prompt)} .. {max(prompt)}; "
                "was the prompt made by another model's tokenizer?"
            )
        if settings.max_tokens > room:
            settings = replace(settings, max_tokens=room)
        stop_ids = frozenset(settings.stop_token_ids) | (frozenset() if settings.ignore_eos else self._eos_ids)
        request = Request(prompt, settings, stop_ids, random.Random(settings.seed))
        if request.most_tokens > self._max_total_tokens:
            raise SamplingError(
                f"prompt and max_tokens come to {request.most_tokens} tokens, more than the key/value memory of "
                f"{self._max_total_tokens}; lower max_tokens or raise the memory"
            )
        return request

    def submit(self, request: Request) -> Future[Completion]:
        """Queue a request made by ``make_request``; its future is resolved by later steps."""
        self._waiting.append(request)
        return request.future

    def step(self, admit: bool = True) -> None:
        """One token boundary: let waiting requests in (unless ``admit`` is False), then one token for every row.

        A failure of the model reaches the requests it worked on, as a ``GenerationError``; the batcher stays usable.
        """
        with torch.inference_mode():
            self._leave({row for row, request in enumerate(self._running) if request.future.cancelled()})
            if admit and (newcomers := self._next_newcomers()):
                try:
                    self._prefill(newcomers)
                except GenerationError as error:
                    self._fail(newcomers, error)
            if self._running:
                try:
                    self._decode()
                except GenerationError as error:
                    self._fail(self._running, error)
                    self._running = []
                    self.free_memory()

    def abort(self, request: Request | None = None) -> int:
        """End one request, or all, with what they have so far (``stop_reason`` aborted); returns how many."""
        ended = {r for r in (*self._running, *self._waiting) if request is None or r is request}
        self._waiting = deque(r for r in self._waiting if r not in ended)
        self._leave({row for row, r in enumerate(self._running) if r in ended})
        for r in ended:
            self._resolve(r, "aborted")
        return len(ended)

    def fail_all(self, error: BaseException) -> None:
        """End every request with an exception."""
        self._fail((*self._running, *self._waiting), error)
        self._running, self._waiting = [], deque()
        self.free_memory()

    def free_memory(self) -> None:
        """Give the key/value buffers back; only between responses."""
        if self._running:
            raise RuntimeError(f"{len(self._running)} responses are in progress; abort them or let them finish first")
        self._window.clear()
        self._sampler = None

    def _next_newcomers(self) -> list[Request]:
        newcomers: list[Request] = []
        longest = max((r.most_tokens for r in self._running), default=0)
        longest_prompt = 0
        while self._waiting:
            request = self._waiting[0]
            if request.future.cancelled():
                self._waiting.popleft()
                continue
            rows = len(self._running) + len(newcomers) + 1
            longest = max(longest, request.most_tokens)
            longest_prompt = max(longest_prompt, len(request.prompt_ids))
            over_prefill = newcomers and (len(newcomers) + 1) * longest_prompt > self._max_prefill_tokens
            if rows > self._max_rows or rows * longest > self._max_total_tokens or over_prefill:
                break
            newcomers.append(self._waiting.popleft())
        return newcomers

    def _prefill(self, newcomers: list[Request]) -> None:
        lengths = [len(r.prompt_ids) for r in newcomers]
        width = max(lengths)
        ids = torch.tensor([[0] * (width - len(r.prompt_ids)) + r.prompt_ids for r in newcomers])
        starts = width - torch.tensor(lengths).unsqueeze(1)
        positions = torch.arange(width) - starts
        cache = DynamicCache()
        logits = self._forward(ids, positions >= 0, positions.clamp_(min=0), cache)
        sampler = BatchSampler([r.settings for r in newcomers], [r.stream for r in newcomers])
        self._window.admit([(keys, values) for keys, values, *_ in cache], lengths)
        first_row = len(self._running)
        self._running += newcomers
        self._sampler = None
        self._append(sampler, logits, first_row)

    def _decode(self) -> None:
        if self._sampler is None:
            self._sampler = BatchSampler([r.settings for r in self._running], [r.stream for r in self._running])
        cache, mask, positions = self._window.step_inputs()
        ids = torch.tensor([[r.token_ids[-1]] for r in self._running])
        logits = self._forward(ids, mask, positions, cache)
        self._window.advance()
        self._append(self._sampler, logits, 0)

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        """Logits of the last column, [rows, vocabulary]."""
        try:
            output = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                **self._last_logits,
            )
        except Exception as error:
            raise GenerationError(f"the model failed: {type(error).__name__}: {error}") from error
        return output.logits[:, -1]

    def _append(self, sampler: BatchSampler, logits: torch.Tensor, first_row: int) -> None:
        """Sample the next token of the rows from ``first_row`` on and let the finished ones go."""
        ended: set[int] = set()
        finished: list[tuple[Request, StopReason]] = []
        broken: list[Request] = []
        for row, (token, log_prob) in enumerate(zip(*sampler.sample(logits), strict=True), start=first_row):
            request = self._running[row]
            if math.isnan(log_prob):
                broken.append(request)
                ended.add(row)
                continue
            request.token_ids.append(token)
            request.log_probs.append(log_prob)
            reason = request.stopped()
            if reason is not None:
                finished.append((request, reason))
                ended.add(row)
        self._leave(ended)
        if broken:
            self._window.scrub()
            self._fail(broken, GenerationError(f"the logits are not finite (weights of version {self.version})"))
        for request, reason in finished:
            self._resolve(request, reason)

    @torch.inference_mode()
    def _leave(self, rows: set[int]) -> None:
        if not rows:
            return
        kept = len(self._running) - len(rows)
        for to, origin in self._window.drop(rows):
            self._running[to] = self._running[origin]
        del self._running[kept:]
        self._sampler = None

    def _resolve(self, request: Request, reason: StopReason) -> None:
        completion = Completion(request.token_ids, request.log_probs, reason, self.version)
        if request.future.set_running_or_notify_cancel():
            request.future.set_result(completion)

    def _fail(self, requests: Collection[Request], error: BaseException) -> None:
        for request in requests:
            if request.future.set_running_or_notify_cancel():
                request.future.set_exception(error)
