"""Composing runs: the published settings, and what a mistyped word is answered with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_system.environments.search.spec import SearchSpec
from rsipo import cli
from rsipo.cli import read_environment
from rsipo.configuration import compose_run, nearest
from rsipo.problems import UserError
from rsipo.run_settings import RunSettings
from rsipo.specs import make_spec

BASE = ["run.name=x", "policy.path=/models/x"]


def settings(*overrides: str) -> RunSettings:
    return RunSettings.from_config(compose_run([*BASE, *overrides]))


def test_the_alfworld_recipe_is_table_2() -> None:
    config = compose_run([*BASE, "recipe=alfworld", "hardware=8xgpu"])
    run = RunSettings.from_config(config)
    assert (run.training.steps, run.training.tasks_per_step, run.check.num_rollouts) == (150, 16, 8)
    assert (run.training.learning_rate, run.training.warmup_ratio) == (1e-6, 0.0)
    assert (run.training.ppo_mini_batch_size, run.training.clip_ratio) == (256, 0.2)
    assert (run.training.kl_coefficient, run.training.entropy_coefficient) == (0.01, 0.001)
    assert (run.env.invalid_action_penalty, run.env.success_reward) == (0.1, 10.0)
    assert (run.prompt.max_prompt_length, run.prompt.max_response_length) == (2048, 512)
    assert (run.env.max_turns, run.env.history_length) == (50, 5)
    assert (run.training.temperature, run.evaluation.temperature) == (1.0, 0.4)
    assert (run.method.opsd_coefficient, run.method.gate_sharpness) == (0.01, 5.0)
    assert (run.check.num_replays, run.skill.rewrite_temperature, run.skill.max_tokens) == (4, 0.3, 4096)
    assert (run.check.alpha, run.check.eta, run.check.kappa, run.check.omega_max, run.check.rho) == (
        0.5,
        0.1,
        2,
        2,
        0.2,
    )
    assert (run.advantage.group_by, run.advantage.statistics, run.advantage.std_floor) == ("turn", "reward", 0.0)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (actor.optim.lr, actor.kl_loss_coef, actor.use_kl_loss, actor.entropy_coeff) == (1e-6, 0.01, True, 0.001)
    assert (rollout.name, rollout.n, config.trainer.n_gpus_per_node) == ("vllm", 1, 8)
    assert rollout.prompt_length == 16384
    assert rollout.response_length == 4096


@pytest.mark.parametrize(("recipe", "analysis_tokens"), [("search", 2048), ("search-qwen2.5-7b", 4096)])
def test_the_search_recipes_are_table_2(recipe: str, analysis_tokens: int) -> None:
    run = settings("env=search", f"recipe={recipe}", "hardware=8xgpu")
    assert (run.training.steps, run.training.tasks_per_step, run.check.num_rollouts) == (150, 128, 8)
    assert (run.training.learning_rate, run.training.warmup_ratio) == (1e-6, 0.1)
    assert (run.training.ppo_mini_batch_size, run.training.clip_ratio) == (512, 0.2)
    assert (run.training.kl_coefficient, run.training.entropy_coefficient) == (0.001, 0.0)
    assert (run.env.invalid_action_penalty, run.env.success_reward) == (0.01, 1.0)
    assert (run.prompt.max_prompt_length, run.prompt.max_response_length) == (4096, 512)
    assert (run.env.max_turns, run.env.history_length, run.env.top_k, run.env.observation_form) == (4, 4, 3, "json")
    assert (run.training.temperature, run.evaluation.temperature) == (1.0, 0.4)
    assert (run.method.opsd_coefficient, run.method.gate_sharpness) == (0.01, 5.0)
    assert (run.check.num_replays, run.skill.rewrite_temperature, run.skill.max_tokens) == (4, 0.3, analysis_tokens)
    assert (run.check.alpha, run.check.eta, run.check.kappa, run.check.omega_max) == (0.5, 0.1, 2, 2)
    assert (run.check.rho, run.check.format_reward, run.check.max_turns) == (0.0, 0.05, 4)
    assert isinstance(make_spec(run.env), SearchSpec)


def test_the_test_questions_lie_below_the_data_root() -> None:
    env = settings("env=search", "env.data_root=/data").env
    assert (env.test_data, env.train_data) == ("/data/searchR1_processed_direct/test.parquet", None)


@pytest.mark.parametrize(
    ("method", "seams"),
    [
        ("rsipo", ("own_skill", "gated", "shrunk_gain", "replay_gain")),
        ("rsipo_no_trust", ("own_skill", "gated", "one", "replay_gain")),
        ("rsipo_no_evolution", ("own_skill", "gated", "shrunk_gain", "none")),
        ("seed", ("own_skill", "gated", "one", "none")),
        ("grpo", ("none", "none", "one", "none")),
    ],
)
def test_a_method_is_four_choices(method: str, seams: tuple[str, ...]) -> None:
    chosen = settings(f"method={method}").method
    assert (chosen.teacher_context, chosen.distillation, chosen.trust, chosen.skill_reward) == seams
    assert chosen.name == method


def test_without_a_kl_term_there_is_no_reference() -> None:
    assert compose_run([*BASE, "training.kl_coefficient=0"]).actor_rollout_ref.actor.use_kl_loss is False


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method=grop", "unknown method 'grop': did you mean 'grpo'?"),
        ("methd=grpo", "unknown setting 'methd': did you mean 'method'?"),
        ("training.step=3", "unknown setting 'training.step': did you mean 'training.steps'?"),
        ("+training.steeps=3", "unknown setting 'training.steeps': did you mean 'steps'?"),
        ("training.steps=many", "training.steps='many': Input should be a valid integer"),
        ("training.steps=0", "training.steps=0: Input should be greater than or equal to 1"),
        ("check.num_rollouts=3", "check.num_rollouts=3 cannot be split"),
        ("run.resume=maybe", "run.resume='maybe': Input should be 'never' or 'auto'"),
        ("training.steps", "bad override"),
        ("=3", "bad override"),
        ("env.task_types=[]", "env.task_types=[]: List should have at least 1 item"),
        ("env=serch", "unknown env 'serch': did you mean 'search'?"),
        ("env.top_k=3", "unknown setting 'env.top_k'"),
        ("env.name=serch", "env.name='serch': did you mean 'search'?"),
        ("+env.top_k=3", "unknown setting 'env.top_k'"),
    ],
)
def test_a_wrong_override_is_one_clear_line(override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        settings(override)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_of_search_that_contradict_each_other_are_one_clear_line() -> None:
    with pytest.raises(UserError, match=r"env: prompt_profile='compact' .* set observation_form='plain'"):
        make_spec(settings("env=search", "env.prompt_profile=compact").env)
    with pytest.raises(UserError, match=r"unknown setting 'env\.engine'"):
        settings("env=search", "env.engine=fast")


def test_nearest_lists_all_where_none_is_near() -> None:
    assert nearest("zzz", ["alfworld"]) == "known: alfworld"


def test_variables_come_from_the_file_and_empty_ones_count_as_unset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RSIPO_WORK", "MODELS_ROOT", "ALFWORLD_DATA", "RSIPO_RESUME_MODE"):
        monkeypatch.setenv(name, "")  # so that what is set below is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("RSIPO_RESUME_MODE", "")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("RSIPO_WORK=~/work\nMODELS_ROOT=\nALFWORLD_DATA='my games'\nodd line\n")
    read_environment(tmp_path / ".env")
    assert os.environ["RSIPO_WORK"] == "/home/me/work"
    assert os.environ["ALFWORLD_DATA"] == str(tmp_path / "my games")
    assert not {"MODELS_ROOT", "RSIPO_RESUME_MODE"} & os.environ.keys()
    for content in (b"\xff", b"A=\0"):
        (tmp_path / ".env").write_bytes(content)
        with pytest.raises(UserError, match="not plain text"):
            read_environment(tmp_path / ".env")


def test_ctrl_c_and_a_folder_that_cannot_be_written_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        sys.exit(130)  # what typer makes of it

    def unwritable() -> None:
        raise PermissionError(13, "Permission denied", "/runs")

    monkeypatch.setattr(cli, "read_environment", lambda file: None)
    for app, status, line in (
        (interrupted, 130, "rsipo: interrupted\n"),
        (unwritable, 2, "rsipo: [Errno 13] Permission denied: '/runs'\n"),
    ):
        monkeypatch.setattr(cli, "app", app)
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert (end.value.code, capsys.readouterr().err) == (status, line)


def test_core_and_help_need_neither_torch_nor_ray_nor_verl() -> None:
    code = (
        "import sys, rsipo.estimators, rsipo.launch, rsipo.cli, rsipo.audit.verify\n"
        "import rsipo.configuration as c, rsipo.run_settings as r\n"
        "r.RunSettings.from_config(c.compose_run(['run.name=x', 'policy.path=x']))\n"
        "heavy = [name for name in ('torch', 'ray', 'verl', 'transformers', 'textworld') if name in sys.modules]\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
