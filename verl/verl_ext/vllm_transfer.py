"""The way of new weights from a training worker to the vLLM worker beside it: both ends, without importing vLLM."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
import torch

from verl_ext.errors import cause_line
from verl_ext.run_folder import FOLDER_VARIABLE
from verl_ext.weights import WeightUpdateError

#: What the vLLM worker process is extended by: veRL's receiver with this project's changes.
RECEIVERS = {"cpu": "verl_ext.vllm_cpu.CPUWeightReceiver", "cuda": "verl_ext.vllm_receiver.WeightReceiver"}

_VERL_PREFIX = "ipc:///tmp/rl-colocate-zmq-"


def weight_socket(handle: str) -> str:
    """veRL's socket address, moved into the run's folder where there is one.

    veRL names it after the Ray job, and the first job of every local cluster has the same id: without this, two runs on
    one machine would connect to each other.

    Raises:
        RuntimeError: veRL names its sockets in another way.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return handle
    if not handle.startswith(_VERL_PREFIX):
        raise RuntimeError(f"veRL's weight socket is {handle}, not {_VERL_PREFIX}…: adapt verl_ext.vllm_transfer")
    os.makedirs(folder, exist_ok=True)  # on another node of a cluster it does not exist yet
    return handle.replace(_VERL_PREFIX, f"ipc://{folder}/weights-", 1)


def all_or_none(send: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """veRL's sender, made to fail on every rank when any rank's server refuses the weights it was sent.

    The ranks meet at a barrier afterwards. A rank that failed alone would leave the others waiting there, and the next
    sync would hang. (A transfer that breaks off fails on its rank alone and at once; nothing can be repaired then.)
    """

    async def send_to_all(*args: Any, **kwargs: Any) -> None:
        refused: ray.exceptions.RayError | None = None
        try:
            await send(*args, **kwargs)
        except ray.exceptions.RayError as error:
            refused = error
        mine = None if refused is None else cause_line(refused)
        answers = [mine]
        if torch.distributed.is_initialized():
            answers *= torch.distributed.get_world_size()
            await asyncio.to_thread(torch.distributed.all_gather_object, answers, mine)
        if found := [answer for answer in answers if answer is not None]:
            raise WeightUpdateError("; ".join(found)) from refused

    return send_to_all


@contextmanager
def answer_within(seconds: float) -> Iterator[None]:
    """Bound every wait of veRL's sender in the block.

    The sender waits for an answer to each bucket, and veRL sets no limit: a receiver that is gone would stop training
    for ever.

    Raises:
        WeightUpdateError: no answer came.
    """
    import zmq  # installed with vLLM only

    context = zmq.Context.instance()  # veRL makes its sockets from it, and they take over its options
    for option in (zmq.RCVTIMEO, zmq.SNDTIMEO):
        context.setsockopt(option, int(seconds * 1000))
    context.setsockopt(zmq.LINGER, 0)
    try:
        yield
    except (zmq.Again, BufferError) as error:  # the latter is what veRL's cleaning up makes of the former
        raise WeightUpdateError(f"a vLLM worker did not answer for {seconds:g} s; see the workers' logs") from error
