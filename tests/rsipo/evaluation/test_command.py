"""From words to what is evaluated: runs, checkpoints, Hugging Face folders, scripts; and everything that is refused."""

from __future__ import annotations

import json
import os
import shutil
from functools import cache
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from rsipo.configuration import compose_run, save_resolved
from rsipo.evaluation.command import Options, evaluate_command
from rsipo.evaluation.subject import Subject, find_subject
from rsipo.models import EMBEDDED_POLICY
from rsipo.problems import UserError
from rsipo.run_settings import RunSettings


@pytest.fixture
def home(tmp_path: Path, games: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RSIPO_WORK", str(tmp_path / "work"))
    monkeypatch.setenv("MODELS_ROOT", str(tmp_path / "models"))
    monkeypatch.setenv("ALFWORLD_DATA", str(games))
    return tmp_path


@cache
def resolved(*overrides: str) -> DictConfig:
    return compose_run([f"policy.path={EMBEDDED_POLICY}", "run.name=x", *overrides])


def make_run(name: str, *overrides: str, steps: tuple[int, ...] = (6, 12)) -> Path:
    """A run as training leaves it, with checkpoints whose files are stand-ins."""
    config = resolved(*overrides)
    root = Path(os.environ["RSIPO_WORK"]) / "runs" / name
    save_resolved(config, root / "rsipo" / "config.yaml")
    for step in steps:
        actor = root / "rsipo" / "checkpoints" / f"global_step_{step}" / "actor"
        actor.mkdir(parents=True)
        (actor / "model_world_size_1_rank_0.pt").write_text(f"weights of step {step}")
        (actor / "optim_world_size_1_rank_0.pt").write_text("large")
        files = {f"actor/{path.name}": path.stat().st_size for path in actor.iterdir()}
        (actor.parent / "complete.json").write_text(json.dumps({"step": step, "files": files}))
    return root


def find(
    environment: str = "alfworld", model: str | None = None, step: int | None = None, *overrides: str, **how
) -> Subject:
    return find_subject(environment, model, step, overrides, **{"hf": False, "script": None} | how)


def test_a_runs_checkpoint_by_the_models_name(home: Path) -> None:
    root = make_run("rsipo-tiny-policy-alfworld")
    newest, sixth = find(model="tiny-policy"), find(model=str(root), step=6)
    assert (newest.label, sixth.label) == ("step12", "step6")
    assert newest.home == root
    assert newest.checkpoint == root / "rsipo" / "checkpoints" / "global_step_12" / "actor"
    names = {path.name for path in newest.weights}
    assert "model_world_size_1_rank_0.pt" in names
    assert not {"optim_world_size_1_rank_0.pt", "model.safetensors"} & names
    assert len({subject.identity(lambda *_: None)["sha256"] for subject in (newest, sixth)}) == 2


def test_without_a_word_it_is_the_newest_embedded_run(home: Path) -> None:
    make_run("rsipo-tiny-policy-alfworld")
    second = make_run("rsipo-tiny-policy-alfworld-2")
    assert find().home == second


def test_only_complete_checkpoints_count(home: Path) -> None:
    root = make_run("rsipo-tiny-policy-alfworld")
    (root / "rsipo/checkpoints/global_step_12/actor/model_world_size_1_rank_0.pt").write_text("cut")
    assert find(model="tiny-policy").step == 6
    with pytest.raises(UserError, match="no complete checkpoint of step 12; there are: 6"):
        find(model="tiny-policy", step=12)
    shutil.rmtree(root / "rsipo/checkpoints")
    with pytest.raises(UserError, match="no complete checkpoint yet"):
        find(model="tiny-policy")


def test_a_checkpoint_is_played_as_it_was_trained_but_by_the_protocol(home: Path) -> None:
    make_run("rsipo-tiny-policy-alfworld", "env.history_length=3", "env.max_turns=9", "workers.slots_per_host=5")
    config = find(model="tiny-policy").config
    settings = RunSettings.from_config(config)
    assert (settings.env.history_length, settings.env.max_turns, settings.env.prompt_profile) == (3, 9, "compact")
    assert settings.panel.splits == {"valid_unseen": 60}  # the embedded run's
    assert settings.workers.concurrent_tasks == 5
    assert settings.training.kl_coefficient == 0  # no reference policy is loaded
    assert list(config.actor_rollout_ref.actor.checkpoint.load_contents) == ["model"]
    assert config.actor_rollout_ref.rollout.response_length == settings.prompt.max_response_length
    other = find(
        "alfworld", "tiny-policy", None, "panel=alfworld", "panel.temperature=0.7", "workers.slots_per_host=2"
    ).config
    assert (other.panel.splits.valid_seen, other.panel.temperature, other.env.max_turns) == (140, 0.7, 50)
    assert other.workers.concurrent_tasks == 2


def test_configurations_of_older_runs_get_todays_defaults_for_what_they_lack(home: Path) -> None:
    path = make_run("rsipo-tiny-policy-alfworld") / "rsipo" / "config.yaml"
    saved = OmegaConf.load(path)
    del saved["panel"]
    del saved.logging["heartbeat"]
    OmegaConf.save(saved, path)
    assert RunSettings.from_config(find(model="tiny-policy").config).logging.heartbeat > 0


def test_a_moved_run_finds_data_and_base_model(home: Path, games: Path) -> None:
    root = make_run("mine", "env.data_root=/elsewhere/games", "panel=alfworld")
    path = root / "rsipo" / "config.yaml"
    path.write_text(path.read_text().replace(str(EMBEDDED_POLICY), "/elsewhere/Base"))
    shutil.copytree(EMBEDDED_POLICY, home / "models" / "Base")
    config = find(model="mine").config
    assert config.env.data_root == str(games)
    assert config.policy.path == config.actor_rollout_ref.model.path == str(home / "models" / "Base")


@pytest.mark.parametrize(
    ("words", "how", "message"),
    [
        (("alfworld", "tiny-polcy"), {}, r"did you mean 'rsipo-tiny-policy-alfworld'\?.*RSIPO_EVAL_HF=1"),
        (("search", "rsipo-tiny-policy-alfworld"), {}, "was trained on 'alfworld', not on 'search'"),
        (("alfworld", "tiny-policy", None, "hardware=8xgpu"), {}, "a checkpoint is played as it was trained"),
        (("alfworld", "tiny-policy", None, "env.max_turn=3"), {}, "did you mean 'env.max_turns'"),
        (("alfworld", "tiny-policy", 12), {"hf": True}, "a Hugging Face folder has no step: leave '12' out"),
        (("alfworld", "nothing"), {"hf": True}, "no model folder '.*nothing' under MODELS_ROOT"),
    ],
)  # fmt: skip
def test_what_does_not_exist_or_go_together_is_refused(words: tuple, how: dict, message: str, home: Path) -> None:
    make_run("rsipo-tiny-policy-alfworld")
    with pytest.raises(UserError, match=message):
        find(*words, **how)


def test_a_hugging_face_folder_and_the_shipped_policy(home: Path) -> None:
    shipped = find(model="tiny-policy", hf=True)
    assert (shipped.kind, shipped.label, shipped.embedded) == ("hf", "hf", True)
    assert shipped.home == home / "work" / "evaluations" / "tiny-policy-alfworld"
    shutil.copytree(EMBEDDED_POLICY, home / "models" / "Mine-SFT")
    mine = find("alfworld", "Mine-SFT", None, "hardware=cpu", hf=True)
    assert (mine.embedded, mine.config.env.max_turns, mine.config.panel.splits.valid_unseen) == (False, 50, 134)
    assert mine.config.actor_rollout_ref.model.path == str(home / "models" / "Mine-SFT")
    assert {"model.safetensors", "tokenizer.json", "config.json", "chat_template.jinja"} <= {
        path.name for path in mine.weights
    }
    same = mine.identity(lambda *_: None)["sha256"]
    assert same == shipped.identity(lambda *_: None)["sha256"]  # the same files in another place
    with (home / "models" / "Mine-SFT" / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(UserError, match="is cut off or no safetensors file"):
        find(model="Mine-SFT", hf=True)


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["alfwrld"], Options(), "unknown benchmark 'alfwrld': did you mean 'alfworld'"),
        (["alfworld", "m", "latest"], Options(), "'latest' is no training step"),
        (["alfworld", "m", "1", "x"], Options(), "too many words"),
        (["alfworld"], Options(script="walktrough"), "did you mean 'walkthrough'"),
        (["alfworld", "panel.seeds=[1,1]"], Options(script="nonsense"), "every round needs a seed of its own"),
        (["alfworld", "panel.folder='a-{b}'"], Options(script="nonsense", subset=True), r"only {weights} and {max_turns}"),
        (["alfworld"], Options(script="nonsense"), "valid_seen has 6 tasks where the panel has 140"),
    ],
)  # fmt: skip
def test_bad_words_are_one_line(words: list[str], options: Options, message: str, home: Path) -> None:
    with pytest.raises(UserError, match=message):
        evaluate_command(words, options)
    assert not (home / "work" / "evaluations").exists()
