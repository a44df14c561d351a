"""Search from words to a plan, and what stops a run of it beforehand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agent_system.environments.search.generator import generate
from rsipo.configuration import compose_run
from rsipo.embedded_runs import make_search_data, retriever
from rsipo.launch import parse_request, request_overrides, train_command
from rsipo.models import EMBEDDED_SEARCH_POLICY
from rsipo.preflight import retriever_problems
from rsipo.problems import UserError
from rsipo.run_settings import RunSettings
from rsipo.saved_rollouts import step_path
from rsipo.search_worlds import generate_command
from rsipo.specs import make_spec


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RSIPO_WORK", str(tmp_path / "work"))
    monkeypatch.setenv("MODELS_ROOT", str(tmp_path / "models"))
    monkeypatch.setenv("SEARCH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("RSIPO_RESUME_MODE", "RSIPO_SEARCH_TRAIN_DATA"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("model", "recipe", "family"),
    [
        ("Qwen2.5-7B-Instruct-search-sft", "search-qwen2.5-7b", "qwen2.5-7b"),
        ("Qwen2.5-3B-Instruct-search-sft", "search", "qwen2.5-3b"),
        ("Qwen3-1.7B-search-sft", "search", "qwen3-1.7b"),
        ("my-model", "search", "default"),
    ],
)
def test_a_model_gets_the_published_settings(model: str, recipe: str, family: str, home: Path) -> None:
    overrides = request_overrides(parse_request(["search", model]))
    assert {f"recipe={recipe}", "env=search", f"family={family}", f"run.name=rsipo-{model}-search"} <= set(overrides)


def test_a_dry_run_says_everything_that_is_missing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No model, no training questions, no test questions, no retriever."""
    words = [
        "search",
        "Qwen2.5-7B-Instruct-search-sft",
        "env.retriever_urls=['http://127.0.0.1:9']",
        "evaluation.at_end=true",
    ]
    assert train_command(words, dry_run=True) == 1
    printed = capsys.readouterr().out
    for problem in (
        "no model folder 'Qwen2.5-7B-Instruct-search-sft'",
        r"env\.train_data is not set: .*search_train_",
        r"env\.test_data: no file .*/data/searchR1_processed_direct/test\.parquet",
        r"no retriever: no answer from http://127\.0\.0\.1:9/retrieve.*scripts/rsipo/start_retriever\.sh",
    ):
        assert re.search(rf"Problem: .*{problem}", printed), problem


def test_the_training_file_comes_from_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate(home / "data", seed=1, train=20, test=9, persons=20, cities=5, countries=3, books=10)
    monkeypatch.setenv("RSIPO_SEARCH_TRAIN_DATA", str(home / "data" / "train.jsonl"))
    settings = RunSettings.from_config(compose_run(request_overrides(parse_request(["search", "my-model"]))))
    assert len(make_spec(settings.env).tasks("train")) == 20


def test_the_embedded_search_run_plans_with_its_own_data_and_policy(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_command(["search"], dry_run=True) == 0
    printed = capsys.readouterr().out
    assert "Nothing was started." in printed
    assert str(EMBEDDED_SEARCH_POLICY) in printed
    assert "rsipo-tiny-policy-search" in printed
    assert not (home / "work" / "data").exists()


def test_an_address_that_is_none_is_a_problem(home: Path) -> None:
    config = compose_run(
        ["env=search", "recipe=search", "run.name=x", "policy.path=x", "env.retriever_urls=[localhost]"]
    )
    (problem,) = retriever_problems(RunSettings.from_config(config))
    assert problem.startswith("env.retriever_urls: 'localhost' is no address")


def test_the_embedded_data_are_made_once_and_served(home: Path) -> None:
    """A real retriever process on a free port, which ends with the block."""
    folder = home / "data" / "search-tiny"
    make_search_data(folder)
    make_search_data(folder)
    question = json.loads((folder / "test.jsonl").read_text(encoding="utf-8").splitlines()[0])
    name = " ".join(question["question"].split()[-3:-1])
    with retriever(folder) as (override,):
        url = override.removeprefix("env.retriever_urls=")
        words = [
            "env=search",
            "recipe=search_embedded",
            "run.name=x",
            "policy.path=x",
            f"env.data_root={folder}",
            override,
        ]
        settings = RunSettings.from_config(compose_run(words))
        assert retriever_problems(settings) == []
        (passages,) = make_spec(settings.env).make()._retriever.search_sync([name])  # type: ignore[attr-defined]
        assert question["metadata"]["gold_passage_ids"][0] in [passage.id for passage in passages]
    assert url
    assert retriever_problems(settings)
    (folder / "corpus.jsonl").write_text("changed")
    with pytest.raises(UserError, match="holds changed generated data"):
        make_search_data(folder)


def test_the_command_that_generates_a_world(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate_command(home / "world", seed=4, train=30, test=9)
    generate_command(home / "world", seed=4, train=30, test=9)
    assert "420 passages and their questions reused in" in capsys.readouterr().out
    with pytest.raises(UserError, match="holds other generated data: remove it"):
        generate_command(home / "world", seed=5, train=30, test=9)
    with pytest.raises(UserError, match="questions wanted"):
        generate_command(home / "other", seed=4, train=100_000, test=9)


def test_training_on_saved_rollouts_needs_no_retriever(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate(home / "data", seed=1, train=20, test=9, persons=20, cities=5, countries=3, books=10)
    saved = home / "saved"
    saved.mkdir()
    for step in range(1, 3):
        step_path(saved, step).touch()
    words = [
        "search",
        f"env.data_root={home / 'data'}",
        "env.retriever_urls=['http://127.0.0.1:9']",
        "training.steps=2",
    ]
    nothing = ["evaluation.at_start=false", "evaluation.at_end=false", "evaluation.every=0"]
    assert train_command([*words, *nothing], dry_run=True) == 1
    assert "no retriever: no answer from" in capsys.readouterr().out
    assert train_command([*words, *nothing, f"debug.load_rollouts={saved}"], dry_run=True) == 0
