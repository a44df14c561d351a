"""What is settled about vLLM's servers before any of them starts. No vLLM is needed for that."""

from __future__ import annotations

from pathlib import Path

import pytest

VLLM = ["actor_rollout_ref.rollout.name=vllm"]
BUCKET = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"


def test_a_bucket_smaller_than_the_largest_weight_is_refused(tiny_model: Path, verl_overrides: list[str]) -> None:
    from verl_ext.cluster import PolicyCluster, load_verl_config
    from verl_ext.vllm_servers import largest_weight

    name, size = largest_weight(tiny_model)
    assert (name, size) == ("lm_head.weight", 320 * 32 * 4) or (name, size) == (
        "model.embed_tokens.weight",
        320 * 32 * 4,
    )
    with pytest.raises(ValueError, match=r"update_weights_bucket_megabytes=0 is too small: .* set it to 1 or more"):
        PolicyCluster(load_verl_config([*verl_overrides, *VLLM, f"{BUCKET}=0"]))
    PolicyCluster(load_verl_config([*verl_overrides, *VLLM, f"{BUCKET}=1"]))


def test_our_receiver_is_used_unless_another_is_named(verl_overrides: list[str]) -> None:
    from verl_ext.cluster import PolicyCluster, load_verl_config

    entry = "actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls"
    for overrides, expected in [
        ([], "verl_ext.vllm_cpu.CPUWeightReceiver"),
        ([f"+{entry}=mine.Receiver"], "mine.Receiver"),
    ]:
        config = PolicyCluster(load_verl_config([*verl_overrides, *VLLM, *overrides])).config
        assert config.actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls == expected


def test_a_weight_socket_lies_in_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl_ext.run_folder import FOLDER_VARIABLE
    from verl_ext.vllm_transfer import weight_socket

    verls = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-1.sock"
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    assert weight_socket(verls) == verls
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert weight_socket(verls) == f"ipc://{tmp_path}/weights-01000000-replica-0-rank-1.sock"
    with pytest.raises(RuntimeError, match=r"adapt verl_ext\.vllm_transfer"):
        weight_socket("tcp://127.0.0.1:5")
