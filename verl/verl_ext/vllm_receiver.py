"""What a vLLM worker process is extended by: veRL's weight receiver, made to fail without stopping the sender."""

from __future__ import annotations

import logging
from typing import Any

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from verl_ext.vllm_transfer import weight_socket

logger = logging.getLogger(__name__)


class WeightReceiver(vLLMColocateWorkerExtension):
    """Named in ``rollout.engine_kwargs.vllm.worker_extension_cls``; vLLM mixes it into its worker class."""

    _load_error: str | None = None

    def update_weights_from_ipc(self, *args: Any, **kwargs: Any) -> None:
        """Take one full set of weights.

        A bucket that cannot be loaded does not end the transfer: the sender, and with it every other rank, would wait
        for an answer. The rest is taken without loading it.

        Raises:
            RuntimeError: the weights could not be loaded; the worker now holds a part of them.
        """
        self._load_error = None
        super().update_weights_from_ipc(*args, **kwargs)
        if self._load_error is not None:
            raise RuntimeError(f"vLLM could not load the weights: {self._load_error}")

    def _update_weights(self, *args: Any, **kwargs: Any) -> None:
        if self._load_error is not None:
            return
        try:
            super()._update_weights(*args, **kwargs)
        except Exception as error:
            # Not the exception itself: its traceback holds tensors in the bucket, which could then not be closed.
            self._load_error = f"{type(error).__name__}: {error}"
            logger.exception("a bucket of weights could not be loaded")

    def _get_zmq_handle(self) -> str:
        return weight_socket(super()._get_zmq_handle())
