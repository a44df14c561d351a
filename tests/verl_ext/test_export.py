"""Checkpoints of a real two-rank cluster, and of one rank without Ray, merge into exactly the trained weights."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from verl_ext.export import ExportError, ShardedPolicy

PROCESS = Path(__file__).with_name("engine_process.py")
Saved = tuple[Path, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def odd_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny policy with tied embeddings of an odd number of rows: two ranks get unequal shards."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("odd_model")
    shutil.copytree(tiny_model, folder, dirs_exist_ok=True)
    config = Qwen2Config.from_pretrained(tiny_model, vocab_size=321, tie_word_embeddings=True, hidden_size=40)
    torch.manual_seed(1)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def two_ranks(
    odd_model: Path,
    verl_overrides: list[str],
    make_samples: Callable,
    small_ray: Callable,
    tmp_path_factory: pytest.TempPathFactory,
) -> Saved:
    """A checkpoint that ``PolicyCluster`` wrote at world size 2 after an update, and the weights it had then."""
    from verl_ext.cluster import PolicyCluster, load_verl_config

    config = load_verl_config(
        [
            *verl_overrides,
            f"actor_rollout_ref.model.path={odd_model}",
            "trainer.n_gpus_per_node=2",
            "actor_rollout_ref.actor.optim.lr=0.01",
            "actor_rollout_ref.actor.use_kl_loss=False",
            "actor_rollout_ref.rollout.name=cpu",
            "actor_rollout_ref.rollout.dtype=float32",
            "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
            "actor_rollout_ref.rollout.free_cache_engine=False",
            "actor_rollout_ref.rollout.prompt_length=64",
            "actor_rollout_ref.rollout.response_length=16",
        ]
    )
    actor = tmp_path_factory.mktemp("two_ranks") / "actor"
    with small_ray(2):
        cluster = PolicyCluster(config)
        try:
            cluster.start()
            assert cluster.update(make_samples(6, seed=1), mini_batch_size=3, seed=0).applied
            cluster.save(actor)
            weights = cluster.export_state()
        finally:
            cluster.shutdown()
    return actor, weights


@pytest.fixture(scope="module")
def one_rank(verl_overrides: list[str], make_samples: Callable, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """The same at world size 1, by the training worker without Ray."""
    folder = tmp_path_factory.mktemp("one_rank")
    scenario = {"overrides": verl_overrides, "opsd": None, "updates": [(make_samples(6, seed=1), [])]}
    scenario |= {"mini_batch_size": 6, "seed": 0, "save_after": 1}
    (folder / "request.pkl").write_bytes(pickle.dumps({"actor": scenario}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, str(PROCESS), str(folder / "request.pkl"), str(folder / "result.pkl")]
    subprocess.run(command, env=os.environ | environment | {"VERL_PLATFORM": "cpu"}, check=True, timeout=500)
    return folder / "actor", pickle.loads((folder / "result.pkl").read_bytes())["actor"]["state"]


@pytest.mark.ray
def test_two_ranks_merge_to_the_trained_weights(two_ranks: Saved, odd_model: Path, tmp_path: Path) -> None:
    actor, trained = two_ranks
    policy = ShardedPolicy(actor)
    assert policy.world_size == 2
    sizes = [torch.load(actor / f"model_world_size_2_rank_{rank}.pt")["model.embed_tokens.weight"] for rank in (0, 1)]
    assert [len(part.to_local()) for part in sizes] == [161, 160]
    _assert_merged(policy, trained)
    original = _load(odd_model).state_dict()["model.embed_tokens.weight"]
    assert not torch.equal(dict(policy.tensors(torch.float32))["model.embed_tokens.weight"], original)
    _assert_written(policy, trained, tmp_path)


def test_one_rank_merges_to_the_trained_weights(one_rank: Saved, tmp_path: Path) -> None:
    actor, trained = one_rank
    policy = ShardedPolicy(actor)
    assert policy.world_size == 1
    _assert_merged(policy, trained)
    _assert_written(policy, trained, tmp_path)


@pytest.mark.ray
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("rank", r"model_world_size_2_rank_1\.pt is missing: 1 of 2 ranks"),
        ("cut", r"model_world_size_2_rank_1\.pt cannot be read"),
        ("world", r"fsdp_config\.json does not say how many ranks"),
        ("config", r"no huggingface/config\.json"),
        ("sizes", r"the weights do not fit config\.json"),
        ("layers", r"the weights do not fit config\.json"),
        ("twice", r"has shape \[321, 40\], its 2 shards make \[322, 40\]"),
    ],
)
def test_what_is_not_whole_is_refused(two_ranks: Saved, tmp_path: Path, damage: str, message: str) -> None:
    actor = tmp_path / "actor"
    shutil.copytree(two_ranks[0], actor, ignore=shutil.ignore_patterns("optim*", "extra*"))
    rank, config = actor / "model_world_size_2_rank_1.pt", actor / "huggingface" / "config.json"
    if damage == "rank":
        rank.unlink()
    elif damage == "cut":
        rank.write_bytes(rank.read_bytes()[:-100])
    elif damage == "world":
        (actor / "fsdp_config.json").write_text("{}")
    elif damage == "config":
        config.unlink()
    elif damage == "twice":
        shutil.copyfile(actor / "model_world_size_2_rank_0.pt", rank)
    else:
        change = {"intermediate_size": 8} if damage == "sizes" else {"num_hidden_layers": 3, "layer_types": None}
        config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(ExportError, match=message):
        ShardedPolicy(actor).build(torch.bfloat16)


def _assert_merged(policy: ShardedPolicy, trained: dict[str, torch.Tensor]) -> None:
    """Exactly the weights, and exactly their rounding."""
    assert policy.names == sorted(trained)
    for name, tensor in policy.tensors(torch.float32):
        assert torch.equal(tensor, trained[name]), name
    for name, tensor in policy.tensors(torch.bfloat16):
        assert torch.equal(tensor, trained[name].bfloat16()), name


def _assert_written(policy: ShardedPolicy, trained: dict[str, torch.Tensor], folder: Path) -> None:
    ids = torch.arange(3, 90)[None]
    for dtype in (torch.float32, torch.bfloat16):
        model = policy.build(dtype)
        target = folder / str(dtype)
        target.mkdir()
        policy.write(model, target)
        config = json.loads((target / "config.json").read_text())
        assert config["dtype"] == str(dtype).removeprefix("torch.")
        assert "attn_implementation" not in config  # that of the training machine
        loaded = _load(target)
        for name, tensor in loaded.state_dict().items():
            assert torch.equal(tensor, trained[name].to(dtype)), name
        with torch.inference_mode():
            torch.testing.assert_close(loaded(input_ids=ids).logits, model(input_ids=ids).logits, rtol=0, atol=0)
        names = {path.name for path in target.iterdir()}
        assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"} <= names
        assert not {"is_local", "local_files_only"} & json.loads((target / "tokenizer_config.json").read_text()).keys()


def _load(folder: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
