"""What a vLLM worker process is extended by: veRL's weight receiver, made to fail without stopping the sender."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from vllm.distributed.parallel_state import get_world_group

from verl_ext.vllm_transfer import weight_socket

logger = logging.getLogger(__name__)


class WeightReceiver(vLLMColocateWorkerExtension):
    """Named in ``rollout.engine_kwargs.vllm.worker_extension_cls``; vLLM mixes it into its worker class."""

    _load_error: str | None = None
    if TYPE_CHECKING:  # of the worker class it is mixed into
        rank: int
        parallel_config: Any

    def update_weights_from_ipc(self, *args: Any, **kwargs: Any) -> None:
        """Take one full set of weights.

        A bucket that cannot be loaded does not end the transfer: the sender, and with it every other rank, would wait
        for an answer. The rest is taken without loading it.

        Raises:
            RuntimeError: a worker of this engine could not load the weights; its workers now hold a part of them.
        """
        self._load_error = None
        super().update_weights_from_ipc(*args, **kwargs)
        errors = [error for error in self._load_errors() if error is not None]
        # vLLM reads its workers' answers in the order of their ranks and stops at the first failure; it would take what
        # it left unread for answers to its next call. So the last one speaks for all.
        if errors and self.rank == self.parallel_config.world_size - 1:
            raise RuntimeError(f"vLLM could not load the weights: {errors[0]}")

    def _load_errors(self) -> list[str | None]:
        """What went wrong on each worker of the engine; all of them call it together."""
        errors = [self._load_error]
        if self.parallel_config.world_size > 1:
            group = get_world_group().cpu_group
            errors *= torch.distributed.get_world_size(group)
            torch.distributed.all_gather_object(errors, self._load_error, group=group)
        return errors

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
