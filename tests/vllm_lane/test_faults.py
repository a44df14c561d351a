"""What goes wrong with servers that are processes of their own, and what is left afterwards. Runs after test_contract.py."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.vllm_cpu


def _shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "verl_weights_"))}


def _on_workers(lane: Any, call: Any) -> list[Any]:
    import ray

    return ray.get([worker.__ray_call__.remote(call) for worker in lane.cluster._workers.workers], timeout=60)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _vllm_workers() -> list[psutil.Process]:
    family = psutil.Process().children(recursive=True)
    return [process for process in family if any("VLLM::Worker" in word for word in process.cmdline())]


def test_everything_listens_on_loopback(lane: Any) -> None:
    """But for torch's rendezvous stores, which take every interface whatever address they are given."""
    open_to_others = {
        f"{process.name()} {connection.laddr.ip}"
        for process in psutil.Process().children(recursive=True)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr.ip not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")
    }
    assert {place for place in open_to_others if not place.startswith(("ray::AgentActor", "VLLM::Worker"))} == set()
    assert {place.split()[-1] for place in open_to_others} <= {"::"}


def test_weight_sockets_lie_in_the_folder_of_this_run(lane: Any) -> None:
    """veRL names them after the Ray job, whose id is the same in every fresh cluster."""
    folder = os.environ["VERL_EXT_RUN_FOLDER"]
    sockets = _on_workers(lane, lambda worker: worker.rollout.zmq_handle)
    assert len(set(sockets)) == len(sockets)
    assert all(socket.startswith(f"ipc://{folder}/weights-") for socket in sockets)


def test_weights_that_cannot_be_loaded_fail_the_sync_at_once(lane: Any) -> None:
    from verl_ext.cluster import WeightSyncError

    def break_weights(worker: Any) -> None:
        engine = worker._worker("actor").engine
        whole = engine.get_per_tensor_param

        def broken(**arguments: Any) -> Any:
            weights, peft = whole(**arguments)
            return ((name, value[:-1] if "input_layernorm" in name else value) for name, value in weights), peft

        engine.get_per_tensor_param = broken

    def mend_weights(worker: Any) -> None:
        del worker._worker("actor").engine.get_per_tensor_param

    _on_workers(lane, break_weights)
    with pytest.raises(WeightSyncError, match="could not load the weights"):
        lane.cluster.sync_weights(1000, timeout_s=120)
    _on_workers(lane, mend_weights)
    lane.sync()
    assert lane.gap(lane.generate()) < 1e-5


def test_a_worker_that_does_not_answer_ends_the_sync(lane: Any) -> None:
    """First the training worker gives up by itself in the middle of a transfer, then the driver before one can begin."""
    from verl_ext.cluster import WeightSyncError

    pid = _vllm_workers()[0].pid

    def stop_midway(worker: Any) -> None:
        engine = worker._worker("actor").engine
        whole = engine.get_per_tensor_param

        def stopping(**arguments: Any) -> Any:
            weights, peft = whole(**arguments)

            def some() -> Iterator[Any]:
                for item in weights:
                    os.kill(pid, signal.SIGSTOP)
                    yield item

            return some(), peft

        engine.get_per_tensor_param = stopping
        worker._answer_deadline_s = 3.0

    _on_workers(lane, stop_midway)
    with pytest.raises(WeightSyncError, match="did not answer for 3 s"):
        lane.cluster.sync_weights(1001, timeout_s=120)
    with pytest.raises(WeightSyncError, match="did not end within 5 s"):
        lane.cluster.sync_weights(1002, timeout_s=5)


def test_shutdown_leaves_nothing(lane: Any) -> None:
    """In the middle of a sync that hangs, with a worker that is stopped: no process, no shared memory, no socket."""
    folder = Path(os.environ["VERL_EXT_RUN_FOLDER"])
    family = psutil.Process().children(recursive=True)
    vllm = [process for process in family if "VLLM" in " ".join(process.cmdline())]
    assert vllm
    assert _shared_memory() - lane.memory_before
    lane.cluster.shutdown()
    psutil.wait_procs(vllm, timeout=10)
    assert [process for process in vllm if _lives(process)] == []
    assert _shared_memory() <= lane.memory_before
    lane.cluster.shutdown()
    lane.stop_ray()
    assert [process for process in family if _lives(process)] == []
    assert not folder.exists()
