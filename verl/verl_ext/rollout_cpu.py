"""The ``cpu`` rollout backend behind veRL's server interface: ``rollout.name=cpu``.

Importing this module registers it. Three parts, as in veRL's own backends: ``CPURolloutServer`` generates (a Ray actor
per replica), ``CPUReplica`` launches it, ``CPURolloutAdapter`` sits in the training worker and sends it new weights.

Weights change as one unit and on all replicas or none: every rank stages a full set on its server, the ranks agree that
all sets are complete, then each server swaps between two decoding steps. Responses in progress finish with the old
weights and waiting requests start with the new ones, so one response never mixes versions; ``extra_fields`` of every
output say which version it was (``global_steps``; -1 before the first update).
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncGenerator, Generator
from functools import cached_property
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.checkpoint_engine.base import ensure_async_iterator
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

from verl_ext.errors import cause_line
from verl_ext.rollout_server import CPURolloutServer, PackedTensor, pack_tensor
from verl_ext.weights import WeightUpdateError

__all__ = ["CPUReplica", "CPURolloutAdapter", "CPURolloutServer", "WeightUpdateError"]


class CPUReplica(RolloutReplica):
    """One server per training rank (tensor, data and pipeline parallel size 1)."""

    async def launch_servers(self) -> None:
        """Start the server on its worker's node and wait until the model is loaded.

        Raises:
            ValueError: a parallel size other than 1.
            ray.exceptions.RayActorError: the server could not load the model; the message says why.
        """
        if self.world_size != 1:
            raise ValueError(
                "rollout.name=cpu serves one rank per server: set rollout.tensor_model_parallel_size, "
                "data_parallel_size and pipeline_model_parallel_size to 1"
            )
        node = await self.workers[0].__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        role = "reward_" if self.is_reward_model else "teacher_" if self.is_teacher_model else ""
        # num_cpus=0: the server takes turns with its training worker, which has the CPU on Ray's books.
        server = (
            ray.remote(CPURolloutServer)
            .options(
                name=_server_name(self.replica_rank, role, self.name_suffix),
                num_cpus=0,
                max_concurrency=self.max_concurrency,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
            )
            .remote(self.config, self.model_config)
        )
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = _server_name(self.replica_rank, role, self.name_suffix)


class CPURolloutAdapter(BaseRollout):
    """The training worker's half: sends this rank's server the full weights."""

    def __init__(self, config: RolloutConfig, model_config: HFModelConfig, device_mesh: Any, replica_rank: int = -1):
        super().__init__(config, model_config, device_mesh)
        self._replica_rank = replica_rank if replica_rank >= 0 else int(os.environ["RANK"])

    async def resume(self, tags: list[str]) -> None:
        """Wake the server once its key/value cache may come back; its weights never left.

        Raises:
            WeightUpdateError: the server is dead.
        """
        # Before the weights are gathered no rank may fail alone: the others would wait for it.
        if "kv_cache" in tags and (error := await self._try("wake_up", tags)):
            raise WeightUpdateError(f"replica {self._replica_rank}: {cause_line(error)}") from error

    async def release(self) -> None:
        """Put the server to sleep."""
        await self._server.sleep.remote()

    async def update_weights(
        self,
        weights: Generator[tuple[str, torch.Tensor], None, None] | AsyncGenerator[tuple[str, torch.Tensor], None],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        peft_config: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Replace the server's weights, on all ranks' servers or on none. All ranks call it together.

        Args:
            weights: every parameter with its full (unsharded) tensor; making them may be collective.
            global_steps: the version reported with outputs from now on.

        Raises:
            WeightUpdateError: some rank's server refused the weights or is dead; servers that live keep the old ones.
        """
        if wire_format != "named_tensors" or peft_config is not None:
            raise WeightUpdateError(
                "the cpu rollout backend takes full weights only: use the naive checkpoint engine, and merge LoRA"
            )
        version = -1 if global_steps is None else global_steps
        update_id = uuid.uuid4().hex
        error = await self._send(weights, update_id)
        try:
            await self._agree(error, "stage")
        except WeightUpdateError:
            await self._try("discard_weights")
            raise
        await self._agree(await self._try("commit_weights", update_id, version), "commit")

    async def _send(self, weights: Any, update_id: str) -> Exception | None:
        """Stage all weights in buckets; returns the first failure.

        After a failure the rest is still taken from ``weights``: the other ranks wait for this one in every gather.
        """
        limit = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20
        bucket: dict[str, PackedTensor] = {}
        size = 0
        error: Exception | None = None
        async for name, tensor in ensure_async_iterator(weights):
            if error is not None:
                continue
            if bucket and size + tensor.nbytes > limit:
                error = await self._try("stage_weights", update_id, bucket)
                bucket, size = {}, 0
            bucket[name] = pack_tensor(tensor)
            size += tensor.nbytes
        if error is None:
            error = await self._try("stage_weights", update_id, bucket)
        return error or await self._try("check_weights", update_id)

    async def _agree(self, error: Exception | None, action: str) -> None:
        """Raise on every rank if any has an error."""
        mine = None if error is None else f"replica {self._replica_rank}: {cause_line(error)}"
        failures = [mine]
        if torch.distributed.is_initialized():
            failures *= torch.distributed.get_world_size()
            await asyncio.to_thread(torch.distributed.all_gather_object, failures, mine)
        if found := [failure for failure in failures if failure is not None]:
            raise WeightUpdateError(f"could not {action} the weights on every server: {'; '.join(found)}") from error

    @cached_property
    def _server(self) -> ray.actor.ActorHandle:
        # By name, at the first use: the server starts after this object.
        return ray.get_actor(_server_name(self._replica_rank))

    async def _try(self, method: str, *args: Any) -> Exception | None:
        """Call the server; a failure is returned instead of raised."""
        try:
            await getattr(self._server, method).remote(*args)
        except Exception as error:
            return error
        return None


def _server_name(replica_rank: int, role: str = "", suffix: str = "") -> str:
    return f"cpu_server_{role}{replica_rank}_0{suffix}"


RolloutReplicaRegistry.register("cpu", lambda: CPUReplica)
# veRL has no public way to register the training side of a backend.
_ROLLOUT_REGISTRY[("cpu", "async")] = f"{__name__}.{CPURolloutAdapter.__name__}"
