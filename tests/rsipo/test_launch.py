"""From words to a run: requests, dry runs of the published configurations, and everything that stops a run beforehand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_system.environments.alfworld.generator import generate_games
from rsipo.launch import parse_request, request_overrides, train_command
from rsipo.models import EMBEDDED_POLICY, PUBLISHED, family, model_folder, read_model
from rsipo.problems import UserError
from rsipo.saved_rollouts import step_path

_HEADER = b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
WEIGHTS = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(4)


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("games")
    generate_games(root, split="train", count=18, size="micro", seed=0)
    generate_games(root, split="valid_seen", count=6, size="micro", seed=0)
    generate_games(root, split="valid_unseen", count=6, size="micro", seed=0)
    return root


@pytest.fixture
def home(tmp_path: Path, games: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RSIPO_WORK", str(tmp_path / "work"))
    monkeypatch.setenv("MODELS_ROOT", str(tmp_path / "models"))
    monkeypatch.setenv("ALFWORLD_DATA", str(games))
    monkeypatch.delenv("RSIPO_RESUME_MODE", raising=False)
    return tmp_path


def test_a_request_is_benchmark_model_and_overrides() -> None:
    request = parse_request(["alfworld", "Qwen3-1.7B", "method=grpo", "~trainer.device", "+a.b=1"])
    assert (request.environment, request.model) == ("alfworld", "Qwen3-1.7B")
    assert request.overrides == ("method=grpo", "~trainer.device", "+a.b=1")
    assert parse_request([]).model is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["alfwrld"], "unknown benchmark 'alfwrld': did you mean 'alfworld'?"),
        (["alfworld", "a", "b"], "too many words"),
    ],
)
def test_a_wrong_request_says_what_is_known(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        parse_request(words)


def test_what_the_user_writes_wins(home: Path) -> None:
    overrides = request_overrides(parse_request(["alfworld", "Qwen3-1.7B", "hardware=cpu"]))
    assert [text for text in overrides if text.startswith("hardware=")] == ["hardware=cpu"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen2.5-7B-Instruct-alfworld-sft", "qwen2.5-7b"),
        ("Qwen2.5-3B-Instruct-alfworld-sft", "qwen2.5-3b"),
        ("Qwen3-1.7B-alfworld-sft", "qwen3-1.7b"),
        ("my-model", "default"),
    ],
)
def test_a_family_is_recognised_by_name(name: str, expected: str) -> None:
    assert family(name) == expected


def test_the_sizes_of_the_published_models_are_theirs() -> None:
    billions = {name: facts.parameters / 1e9 for name, facts in PUBLISHED.items()}
    assert billions == pytest.approx({"qwen2.5-7b": 7.62, "qwen2.5-3b": 3.09, "qwen3-1.7b": 1.72}, rel=0.01)


@pytest.mark.parametrize("base", ["Qwen2.5-7B-Instruct", "Qwen2.5-3B-Instruct", "Qwen3-1.7B"])
def test_a_dry_run_of_a_published_configuration_plans_and_starts_nothing(
    base: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    status = train_command(["alfworld", f"{base}-alfworld-sft"], dry_run=True)
    printed = capsys.readouterr().out
    assert status == 1  # the model is not here, and this is no GPU machine: both are said
    assert f"Problem: no model folder '{base}-alfworld-sft' under MODELS_ROOT=" in printed
    for text in (
        "rollout server (vllm, tensor parallel 1)",
        "KV cache",
        "logits of a micro-batch",
        "nothing was started",
    ):
        assert text in printed
    assert not (home / "work" / "runs").exists()


def test_the_embedded_dry_run_has_no_problem(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_command([], dry_run=True) == 0
    assert "Nothing was started." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env.data_root=/nowhere"], "no split 'train'"),
        (["policy.path=/nowhere"], "no model folder '/nowhere'"),
        (["training.tasks_per_step=99"], "18 training tasks"),
        (
            ["trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.tensor_model_parallel_size=4"],
            "divisor of the ranks",
        ),
        (["prompt.max_prompt_length=5000", "prompt.max_teacher_prompt_length=5000"], "longer context"),
        (["prompt.max_teacher_prompt_length=100"], "raise prompt.max_teacher_prompt_length"),
        (
            ["actor_rollout_ref.actor.ppo_max_token_len_per_gpu=400"],
            "raise actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
        ),
        (["env.task_types=[pick_up]"], "no task of type pick_up"),
        (["env.trusted_manifest=/nowhere"], "env.trusted_manifest: "),
        (["trainer.device=tpu"], "trainer.device=tpu: did you mean 'cpu'?"),
        (["trainer.n_gpus_per_node=0"], "trainer.n_gpus_per_node=0: must be a whole number of at least 1"),
        (["trainer.nnodes=2"], "several nodes"),
        (["actor_rollout_ref.rollout.tensor_model_parallel_size=0"], "tensor_model_parallel_size=0: must be"),
        (["actor_rollout_ref.rollout.name=vlm"], "on a CPU the rollout server is 'cpu'"),
        (
            ["hardware=cpu_vllm", "actor_rollout_ref.rollout.max_num_batched_tokens=2048"],
            "longest sequence 4096 <= 2048 tokens in one pass of a server: raise",
        ),
        (
            ["trainer.n_gpus_per_node=2", "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"],
            "needs actor_rollout_ref.model.use_remove_padding=true",
        ),
        (["logging.trackers=[wandbb]"], "unknown tracker 'wandbb': did you mean 'wandb'?"),
        (["logging.trackers=[clearml]"], "'clearml' needs its package"),
    ],
)
def test_what_cannot_work_is_said_before_a_worker_starts(
    overrides: list[str], message: str, home: Path, games: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_command([f"env.data_root={games}", *overrides], dry_run=True) == 1
    problems = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Problem: ")]
    assert any(message in line for line in problems), problems


def test_saved_rollouts_are_all_there_and_nothing_is_to_be_played(
    home: Path, games: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = home / "saved"
    words = [f"env.data_root={games}", "training.steps=3", f"debug.load_rollouts={saved}"]
    nothing = ["evaluation.at_start=false", "evaluation.at_end=false", "evaluation.every=0"]
    saved.mkdir()
    assert train_command(words, dry_run=True) == 1
    printed = capsys.readouterr().out
    assert "holds no step-*.jsonl.gz: a run with debug.save_rollouts=true writes them" in printed
    assert "plays nothing, so there is no evaluation" in printed
    for step in (1, 2):
        step_path(saved, step).touch()
    assert train_command([*words, *nothing, "debug.save_rollouts=true"], dry_run=True) == 1
    printed = capsys.readouterr().out
    assert "step-000003.jsonl.gz is missing (1 of the steps to train): lower training.steps, or save more" in printed
    assert "nothing is played that could be saved" in printed
    assert train_command([*words, *nothing, "training.steps=2"], dry_run=True) == 0


def test_a_used_run_folder_is_refused(home: Path, games: Path) -> None:
    used = home / "work" / "runs" / "mine" / "rsipo"
    used.mkdir(parents=True)
    (used / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="holds a run already: RSIPO_RESUME_MODE=auto resumes it"):
        train_command([f"env.data_root={games}", "run.name=mine"], dry_run=False)


def test_a_model_folder_must_be_whole(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json is not JSON"):
        read_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8}))
    with pytest.raises(UserError, match="no weights"):
        read_model(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(WEIGHTS[:-1])
    with pytest.raises(UserError, match=r"model\.safetensors is cut off"):
        read_model(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model-2.safetensors"}}')
    with pytest.raises(UserError, match=r"model-2\.safetensors is missing"):
        read_model(tmp_path)
    index.unlink()
    weights.write_bytes(WEIGHTS)
    with pytest.raises(UserError, match="no tokenizer"):
        read_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer\.json is not JSON"):
        read_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UserError, match="no chat template"):
        read_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("x")
    with pytest.raises(UserError, match=r"config\.json lacks 'num_hidden_layers'"):
        read_model(tmp_path)
    sizes = json.loads((EMBEDDED_POLICY / "config.json").read_text())
    for values in ({"hidden_size": "x"}, {"num_attention_heads": 0, "num_key_value_heads": 0, "head_dim": None}):
        (tmp_path / "config.json").write_text(json.dumps(sizes | values))
        with pytest.raises(UserError, match="make no sense"):
            read_model(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"config\.json unreadable"):
        read_model(tmp_path)


def test_the_policys_folder_must_be_there_itself(home: Path, games: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that only the model's name leads to is not what the workers would open."""
    (home / "models").mkdir()
    (home / "models" / "mine").symlink_to(EMBEDDED_POLICY)
    train_command([f"env.data_root={games}", "policy.path=mine"], dry_run=True)
    assert f"policy.path=mine is no folder; write policy.path={EMBEDDED_POLICY}" in capsys.readouterr().out


def test_a_run_folder_that_cannot_be(home: Path, games: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "work").write_text("")
    train_command([f"env.data_root={games}"], dry_run=True)
    assert "cannot be written" in capsys.readouterr().out


def test_an_unknown_model_names_the_nearest(home: Path) -> None:
    known = home / "models" / "Qwen2.5-7B-Instruct"
    known.mkdir(parents=True)
    with pytest.raises(UserError, match=r"did you mean 'Qwen2.5-7B-Instruct'\?"):
        model_folder("Qwen2.5-7B-Instrct")


def test_the_shipped_policy_is_read() -> None:
    facts = read_model(EMBEDDED_POLICY)
    assert facts.layers == 3
    assert 700_000 < facts.parameters < 800_000
