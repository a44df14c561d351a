"""The stages after the rollouts: interrupted anywhere and resumed, the files are those of a run that was not."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rsipo.cli import app
from rsipo.embedded.search_demonstrations import play_scripted
from rsipo.embedded.search_warm_start import LocalWorld
from rsipo.evaluation.episodes import Key, episode_record
from rsipo.problems import UserError
from rsipo.prompts import analysis_messages
from rsipo.record_lines import read_records, write_records
from rsipo.searchdata.files import write_json
from rsipo.settings import SkillSettings
from rsipo.sft.annotate import annotate
from rsipo.sft.build import build
from rsipo.sft.endpoint import Endpoint
from rsipo.sft.layout import PUBLISHED, SftFiles
from rsipo.sft.setup import Setup, open_setup
from rsipo.sft.tasks import choose_tasks, write_tasks
from rsipo.sft.trajectories import as_episode, trajectory_record
from rsipo.skills import read_skill

ALFWORLD = ["prompt", "response", "skill_id", "task_id", "task_type", "source_success", "source_num_steps", "parse_ok"]
SEARCH = [*ALFWORLD, "row_index", "data_source", "source_final_task_score", "analysis_prompt_version"]


def silent(stage: str, done: int, total: int) -> None:
    pass


def hashes(files: SftFiles) -> dict[str, str]:
    found = [*PUBLISHED, "SOURCE_SHA256.json"]
    return {name: hashlib.sha256((files.root / name).read_bytes()).hexdigest() for name in found}


def finish(setup: Setup, files: SftFiles, endpoint: Endpoint | None, **options: Any) -> dict[str, str]:
    annotate(setup, files, endpoint, **{"allow_missing": False, "progress": silent} | options)
    build(files, share=0.1, seed=0)
    return hashes(files)


@pytest.fixture
def whole(setup: Setup, files: SftFiles, endpoint: Endpoint, tmp_path: Path) -> dict[str, str]:
    """The hashes of an uninterrupted run, in another folder."""
    other = SftFiles(tmp_path / "whole")
    for name in (
        "sampled_tasks.jsonl.gz",
        "trajectories.jsonl.gz",
        "work/rollouts/settings.json",
        "work/sampling.json",
    ):
        path = other.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((files.root / name).read_bytes())
    return finish(setup, other, endpoint)


def test_columns_rows_and_split(setup: Setup, files: SftFiles) -> None:
    finish(setup, files, None)
    train, validation = (pq.read_table(path) for path in (files.train, files.validation))
    assert train.column_names == validation.column_names == ALFWORLD
    assert (train.num_rows, validation.num_rows) == (10, 2)
    assert not set(train["task_id"].to_pylist()) & set(validation["task_id"].to_pylist())
    trajectories = {record["trajectory_id"]: record for record in read_records(files.trajectories)}
    records = list(read_records(files.records))
    assert [record["skill_id"] for record in records] == list(trajectories)
    assert {record["annotator"] for record in records} == {"offline-templates-1"}
    for record in records:
        source = trajectories[record["skill_id"]]
        episode = as_episode(source)
        prompt = analysis_messages(episode, benchmark="alfworld", profile="compact")[0]["content"]
        assert record["prompt"] == prompt
        assert (record["source_success"], record["source_num_steps"]) == (source["success"], len(source["steps"]))
        skill = read_skill(record["response"], finished=True, settings=SkillSettings())
        assert skill.valid
        assert skill.summary
    hashed = json.loads(files.hashes.read_text())
    assert hashed == {name: digest for name, digest in hashes(files).items() if name in PUBLISHED}
    assert gzip.decompress(files.records.read_bytes()).count(b"\n") == 12
    assert files.records.read_bytes()[4:8] == bytes(4)  # no time in the header


def test_unusable_answers_are_dropped_and_counted(
    llm: Any, setup: Setup, files: SftFiles, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.dumps({"episode_summary": "It went.", "episode_skill": "Open closed places before you leave them."})
    texts = iter(
        [
            "I would rather not.",
            '{"episode_summary": "Half a',
            '{"episode_summary": "No skill."}',
            '{"episode_summary": "Short.", "episode_skill": "Look around."}',
            '{"episode_skill": "Open closed places before you leave them."}',
            f"Here you are:\n```json\n{good[:-1]},}}\n```",
            "",
        ]
    )
    llm.content = lambda prompt: next(texts, good)
    done = annotate(setup, files, endpoint.model_copy(update={"concurrency": 1}), allow_missing=False, progress=silent)
    assert (done.written, done.valid, done.missing) == (12, 6, 0)
    metrics = build(files, share=0.1, seed=0)
    assert metrics["dropped"] == {"no_json": 3, "no_skill": 1, "no_summary": 1, "too_short": 1}
    assert metrics["records"] == 6
    assert (metrics["annotator_prompt_tokens"], metrics["annotator_completion_tokens"]) == (1200, 240)
    rows = list(read_records(files.annotations))
    assert [row["raw_output"] for row in rows][:1] == ["I would rather not."]
    assert rows[5]["episode_skill"] == "Open closed places before you leave them."
    assert {row["annotator"] for row in rows} == {"glm"}
    prompts = [body["messages"][0]["content"] for body in llm.bodies]
    assert prompts == [row["prompt"] for row in rows]


def test_interrupted_by_the_keyboard_it_pays_for_nothing_twice(
    llm: Any, setup: Setup, files: SftFiles, endpoint: Endpoint, whole: dict[str, str]
) -> None:
    llm.prompts.clear()

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "annotations" and done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        annotate(setup, files, endpoint.model_copy(update={"concurrency": 1}), allow_missing=False, progress=stop)
    assert not files.annotations.exists()
    assert sum(llm.prompts.values()) == 4
    assert finish(setup, files, endpoint) == whole
    assert set(llm.prompts.values()) == {1}
    assert sum(llm.prompts.values()) == 12
    assert finish(setup, files, endpoint) == whole
    assert sum(llm.prompts.values()) == 12


def test_requests_without_a_response_stop_it_and_are_asked_again(
    llm: Any, setup: Setup, files: SftFiles, endpoint: Endpoint, whole: dict[str, str]
) -> None:
    def refuse(handler: Any) -> None:
        handler.send_error(500)

    llm.faults, llm.prompts = [refuse] * 4, type(llm.prompts)()
    once = endpoint.model_copy(update={"attempts": 1})
    with pytest.raises(UserError, match=r"4 of 12 requests had no response, most often: HTTP 500.*--allow-missing"):
        annotate(setup, files, once, allow_missing=False, progress=silent)
    files.annotations.touch()
    with pytest.raises(UserError, match="not finished"):
        build(files, share=0.1, seed=0)
    assert finish(setup, files, once) == whole
    assert sum(llm.prompts.values()) == 12


def test_missing_answers_may_be_left_out(llm: Any, setup: Setup, files: SftFiles, endpoint: Endpoint) -> None:
    llm.faults = [lambda handler: handler.send_error(422)] * 3
    done = annotate(setup, files, endpoint, allow_missing=True, progress=silent)
    assert (done.written, done.missing) == (9, 3)
    assert build(files, share=0.1, seed=0)["without_annotation"] == 3


def test_a_spent_budget_stops_it_and_a_larger_one_goes_on(
    llm: Any, setup: Setup, files: SftFiles, endpoint: Endpoint, whole: dict[str, str]
) -> None:
    llm.prompts.clear()
    poor = endpoint.model_copy(update={"budget_tokens": 1600, "max_tokens": 50})
    with pytest.raises(UserError, match=r"of 12 trajectories are annotated: \d+ of 1,600 tokens .*BUDGET_TOKENS"):
        annotate(setup, files, poor, allow_missing=False, progress=silent)
    first = sum(llm.prompts.values())
    assert 0 < first < 12
    rich = poor.model_copy(update={"budget_tokens": 100_000})
    annotate(setup, files, rich, allow_missing=False, progress=silent)
    assert set(llm.prompts.values()) == {1}
    assert sum(llm.prompts.values()) == 12


def test_a_dead_endpoint_is_noticed_before_everything_was_tried(
    llm: Any, setup: Setup, files: SftFiles, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rsipo.sft.annotations._HOPELESS", 5)
    llm.faults = [lambda handler: handler.send_error(500)] * 100
    with pytest.raises(UserError, match="the first 5 requests had no response, such as: HTTP 500"):
        annotate(setup, files, endpoint, allow_missing=True, progress=silent)


def test_a_build_that_fails_claims_nothing_and_is_repeated(
    setup: Setup, files: SftFiles, endpoint: Endpoint, whole: dict[str, str]
) -> None:
    assert finish(setup, files, endpoint) == whole
    files.validation.unlink()
    files.validation.mkdir()
    with pytest.raises(OSError, match=r"val\.parquet"):
        build(files, share=0.1, seed=0)
    assert not files.hashes.exists()
    files.validation.rmdir()
    build(files, share=0.1, seed=0)
    assert hashes(files) == whole


def test_what_does_not_belong_together_is_refused(setup: Setup, files: SftFiles, endpoint: Endpoint) -> None:
    finish(setup, files, None)
    with pytest.raises(UserError, match=r"was annotated with annotator 'offline-templates-1', now it is 'glm'"):
        annotate(setup, files, endpoint, allow_missing=False, progress=silent)
    write_records(files.trajectories, list(read_records(files.trajectories))[1:])
    with pytest.raises(UserError, match=r"trajectories.jsonl.gz has changed since"):
        build(files, share=0.1, seed=0)
    files.trajectories.write_bytes(files.trajectories.read_bytes()[:-40])
    with pytest.raises(UserError, match=r"trajectories.jsonl.gz is cut off or damaged after line \d+"):
        annotate(setup, files, None, allow_missing=False, progress=silent)


def test_without_a_usable_answer_there_is_nothing_to_train_on(
    llm: Any, setup: Setup, files: SftFiles, endpoint: Endpoint
) -> None:
    llm.content = lambda prompt: "no"
    with pytest.raises(UserError, match="at least two tasks with a valid annotation"):
        finish(setup, files, endpoint)


def test_long_trajectories_lose_the_detail_of_their_oldest_turns(
    setup: Setup, files: SftFiles, sft_games: Path
) -> None:
    with open_setup("alfworld", None, [f"env.data_root={sft_games}", "skill.max_prompt_length=90"]) as tight:
        finish(tight, files, None)
    rows = list(read_records(files.annotations))
    assert all(row["prompt_tokens"] <= 90 for row in rows)
    assert any(row["prompt_shortened"] for row in rows)
    assert all(row["prompt"].startswith("Task: ") and row["prompt"].endswith("JSON.") for row in rows)


def test_search_has_its_own_columns(tmp_path: Path) -> None:
    world = LocalWorld.make(tmp_path / "world", seed=5, train=40, test=6)
    questions = world.spec.tasks("train")
    chosen = choose_tasks(questions, "search", 8, 0)
    files = SftFiles(tmp_path / "data")
    write_tasks(files, chosen, "search", seed=0, available=40)
    environment = world.environment()
    records = []
    for task in chosen:
        episode = play_scripted(environment, world.spec, task, random.Random(0), 0.2)
        records.append(trajectory_record(episode_record(Key("train", 0, task.task_id), task, episode), 0))
    write_records(files.trajectories, records)
    write_json(files.rollouts / "settings.json", {"policy": {}, "protocol": {"seeds": [0]}, "versions": {}})
    # A retriever is not needed any more: its address is given, so none is started.
    overrides = ["env.data_root=" + str(tmp_path / "world"), "env.retriever_urls=['http://127.0.0.1:9']"]
    with open_setup("search", None, overrides) as setup:
        finish(setup, files, None)
    table = pq.read_table(files.train)
    assert table.column_names == SEARCH
    by_id = {task.task_id: task for task in questions}
    for row in table.to_pylist():
        task = by_id[row["task_id"]]
        assert task.location.endswith(f"#{row['row_index']}")
        assert row["data_source"] == task.task_type
        assert row["source_final_task_score"] == float(row["source_success"])
        assert row["analysis_prompt_version"] == "analysis-compact-1"
    result = CliRunner().invoke(app, ["sft", "check", str(files.root)])
    assert result.exit_code == 0, result.output
    assert "search; train.parquet 7, val.parquet 1" in result.output
