"""The generating half of the ``cpu`` rollout backend: a Ray actor that serves one replica with transformers."""

from __future__ import annotations

import asyncio
import hashlib
import os
from functools import partial
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from transformers import AutoModelForCausalLM, PreTrainedModel
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import TokenOutput

from verl_ext.generation import Completion, ContinuousBatcher, GenerationError, Request
from verl_ext.generation_thread import GenerationThread
from verl_ext.sampling import SamplingError, SamplingSettings
from verl_ext.weights import WeightStage

# Bound of one server's key/value memory; ``rollout.engine_kwargs.cpu.kv_cache_megabytes`` overrides it.
_KV_CACHE_MEGABYTES = 2048

# A tensor as bytes, its dtype and its shape.
PackedTensor = tuple[np.ndarray, torch.dtype, torch.Size]


def pack_tensor(tensor: torch.Tensor) -> PackedTensor:
    """As bytes, which Ray ships without a copy through shared memory; NumPy itself has no bfloat16."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy(), tensor.dtype, tensor.shape


def unpack_tensor(data: np.ndarray, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    # A copy: Ray's buffer is read-only, and holding it would keep the object store full.
    return torch.from_numpy(data.copy()).view(dtype).reshape(shape)


class CPURolloutServer:
    """Token in, token out generation with transformers. An asyncio Ray actor; the model runs in one thread of its own.

    Args:
        config: veRL's rollout configuration. Used: dtype, max_model_len, max_num_seqs, max_num_batched_tokens,
            prompt_length, response_length, load_format, ignore_eos, full_determinism, seed, free_cache_engine and
            ``engine_kwargs.cpu.kv_cache_megabytes``.
        model_config: veRL's model configuration.

    Raises:
        ValueError: the configuration cannot work with this model.
    """

    def __init__(self, config: RolloutConfig, model_config: DictConfig):
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self.config = config
        hf = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        model = _load_model(config, hf)
        context = model.config.get_text_config().max_position_embeddings
        if config.max_model_len and config.max_model_len > context:
            raise ValueError(f"rollout.max_model_len is {config.max_model_len}, but the model's context is {context}")
        self._context_length = config.max_model_len or context
        self._batcher = ContinuousBatcher(
            model,
            _eos_ids(hf),
            context_length=self._context_length,
            max_rows=config.max_num_seqs,
            max_total_tokens=_kv_tokens(model, config),
            max_prefill_tokens=config.max_num_batched_tokens,
        )
        self._thread = GenerationThread(self._batcher)
        self._stage = WeightStage(model)
        self._has_weights = config.load_format != "dummy"
        self._awake = True
        self._open = asyncio.Event()  # closed between abort_all_requests and resume_generation
        self._open.set()
        self._rejecting = False
        self._in_flight: dict[Request, tuple[str, asyncio.Future[Completion]]] = {}

    async def ready(self) -> None:
        """Returns once the model is loaded."""

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        audio_data: list[Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        priority: int = 0,
    ) -> TokenOutput:
        """Generate one response.

        Args:
            prompt_ids: the exact prompt.
            sampling_params: see ``SamplingSettings.from_params``; without ``max_tokens`` the configured lengths bound
                the response. ``temperature`` defaults to 1.
            request_id: names the request for ``abort_request`` and, with ``rollout.full_determinism``, seeds it.

        Raises:
            SamplingError: this request cannot be served; others are not affected.
            GenerationError: the model failed, or the server has no weights or sleeps.
        """
        if image_data or video_data or audio_data:
            raise SamplingError("the cpu rollout backend takes text only, not images, video or audio")
        while not self._open.is_set():
            if self._rejecting:
                return self._output([], None, "aborted", self._batcher.version)
            await self._open.wait()
        if not self._has_weights:
            raise GenerationError("the server has no weights yet (rollout.load_format=dummy): update_weights first")
        if not self._awake:
            raise GenerationError("the server sleeps: wake it up (or sync the weights) before generating")
        request = self._batcher.make_request(prompt_ids, self._settings(sampling_params, request_id, len(prompt_ids)))
        future = asyncio.wrap_future(self._thread.submit(request))
        self._in_flight[request] = (request_id, future)
        try:
            done = await future
        finally:
            del self._in_flight[request]
        return self._output(done.token_ids, done.log_probs, done.stop_reason, done.version)

    def _settings(self, params: dict[str, Any], request_id: str, prompt_length: int) -> SamplingSettings:
        config = self.config
        budget = min(config.response_length, config.prompt_length + config.response_length - prompt_length)
        params = {"ignore_eos": config.ignore_eos, **params}
        if config.full_determinism and params.get("seed") is None:
            digest = hashlib.sha256(f"{config.seed}/{request_id}".encode()).digest()
            params["seed"] = int.from_bytes(digest[:8], "big")
        return SamplingSettings.from_params(params, default_max_tokens=max(1, budget))

    @staticmethod
    def _output(token_ids: list[int], log_probs: list[float] | None, reason: str, version: int) -> TokenOutput:
        return TokenOutput(
            token_ids=token_ids, log_probs=log_probs, stop_reason=reason, extra_fields={"global_steps": version}
        )

    # ------------------------------------------------------------------ flow control

    async def abort_all_requests(self, reset_prefix_cache: bool = True, reject_request: bool = False) -> dict[str, Any]:
        """End all requests with what they have and hold new ones back until ``resume_generation``.

        With ``reject_request`` new ones come back at once, aborted and empty.
        """
        self._open.clear()
        self._rejecting = reject_request
        ids = [request_id for request_id, _ in self._in_flight.values()]
        count = await asyncio.wrap_future(self._thread.call(self._batcher.abort))
        return {"aborted_count": count, "request_ids": ids}

    async def abort_request(self, request_id: str, reset_prefix_cache: bool = True) -> dict[str, Any]:
        """End one request with what it has."""
        found = [request for request, (name, _) in self._in_flight.items() if name == request_id]
        for request in found:
            await asyncio.wrap_future(self._thread.call(partial(self._batcher.abort, request)))
        return {"aborted": bool(found), "request_id": request_id}

    async def resume_generation(self) -> None:
        """Let requests in again after ``abort_all_requests``."""
        self._rejecting = False
        self._open.set()

    async def sleep(self) -> None:
        """Finish the requests that are here, refuse new ones and free the key/value memory; the weights stay.

        Like veRL's own servers, does nothing unless ``rollout.free_cache_engine``.
        """
        if self.config.free_cache_engine:
            self._awake = False
            if self._in_flight:
                await asyncio.wait([future for _, future in self._in_flight.values()])
            await self.release_kv_cache()

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Take requests again. ``tags`` without ``kv_cache`` changes nothing: the weights never left."""
        if tags is None or "kv_cache" in tags:
            self._awake = True

    async def clear_kv_cache(self) -> None:
        """Nothing to clear: there is no prefix cache, keys and values die with their response."""

    async def release_kv_cache(self) -> None:
        """Free the key/value memory once the responses in progress have finished."""
        await asyncio.wrap_future(self._thread.call_when_idle(self._batcher.free_memory))

    async def resume_kv_cache(self) -> None:
        """Nothing to do: memory is taken as requests come."""

    async def start_profile(self, **kwargs: Any) -> None:
        """Accepted for veRL's sake; this server has no profiler."""

    async def stop_profile(self) -> None:
        """Accepted for veRL's sake; this server has no profiler."""

    async def get_rollout_config(self) -> RolloutConfig:
        """The configuration, for routers."""
        return self.config

    async def status(self) -> dict[str, int]:
        """Responses in progress, requests waiting, version of the weights."""
        batcher = self._batcher
        return {"running": batcher.num_running, "waiting": batcher.num_waiting, "version": batcher.version}

    # ------------------------------------------------------------------ weights

    async def stage_weights(self, update_id: str, packed: dict[str, PackedTensor]) -> None:
        """Receive part of an update, as made by ``pack_tensor``. Raises ``WeightUpdateError``."""
        self._stage.add(update_id, {name: unpack_tensor(*entry) for name, entry in packed.items()})

    async def check_weights(self, update_id: str) -> None:
        """Is the update complete? Raises ``WeightUpdateError``."""
        self._stage.check(update_id)

    async def commit_weights(self, update_id: str, version: int) -> None:
        """Swap the staged weights in once the responses in progress have finished. Raises ``WeightUpdateError``."""

        def swap() -> None:
            self._stage.commit(update_id)
            self._batcher.version = version

        await asyncio.wrap_future(self._thread.call_when_idle(swap))
        self._has_weights = True

    async def discard_weights(self) -> None:
        """Forget a staged update."""
        self._stage.discard()


def _load_model(config: RolloutConfig, model_config: HFModelConfig) -> PreTrainedModel:
    dtype = PrecisionType.to_dtype(config.dtype)
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"rollout.dtype is {config.dtype}; the cpu rollout backend takes float32 or bfloat16")
    trust = model_config.trust_remote_code
    if config.load_format == "dummy":
        model = AutoModelForCausalLM.from_config(model_config.hf_config, dtype=dtype, trust_remote_code=trust)
    else:
        model = AutoModelForCausalLM.from_pretrained(
            str(model_config.local_path), config=model_config.hf_config, dtype=dtype, trust_remote_code=trust
        )
    return model.eval()


def _eos_ids(model_config: HFModelConfig) -> set[int]:
    """The tokenizer's end-of-sequence token and those of the generation configuration."""
    ids: set[int] = set()
    for source in (model_config.tokenizer, model_config.generation_config):
        value = getattr(source, "eos_token_id", None)
        ids.update([value] if isinstance(value, int) else value or [])
    if not ids:
        raise ValueError(
            f"{model_config.path} names no end-of-sequence token, neither in its tokenizer nor in "
            "generation_config.json: responses would never end"
        )
    return ids


def _kv_tokens(model: PreTrainedModel, config: RolloutConfig) -> int:
    """How many tokens the key/value memory holds."""
    text = model.config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    bytes_per_token = 2 * text.num_hidden_layers * heads * head_size * model.dtype.itemsize
    megabytes = config.engine_kwargs.get("cpu", {}).get("kv_cache_megabytes", _KV_CACHE_MEGABYTES)
    return (megabytes << 20) // bytes_per_token
