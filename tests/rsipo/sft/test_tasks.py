"""Which tasks are sampled, and that they are found again."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest

from agent_system.environments.alfworld.index import TASK_TYPES
from agent_system.environments.base import Task
from rsipo.problems import UserError
from rsipo.searchdata.formats import SOURCES, QARow, write_processed
from rsipo.sft.layout import SftFiles
from rsipo.sft.sample_script import sample_alfworld
from rsipo.sft.setup import Setup
from rsipo.sft.stages import sample_stage
from rsipo.sft.strata import proportional_quotas
from rsipo.sft.tasks import choose_tasks, read_records, sampled_tasks


def games(each: int) -> list[Task]:
    return [Task(f"{kind}/{n:04}", kind, "", "") for kind in TASK_TYPES for n in range(each)]


def test_500_games_are_84_or_83_of_each_type_and_a_pure_function_of_the_seed() -> None:
    tasks = games(600)
    chosen = choose_tasks(tasks, "alfworld", 500, 0)
    assert sorted(Counter(task.task_type for task in chosen).values()) == [83, 83, 83, 83, 84, 84]
    assert choose_tasks(tasks[::-1], "alfworld", 500, 0) == chosen
    assert choose_tasks(tasks, "alfworld", 500, 1) != chosen
    assert chosen == sorted(chosen, key=lambda task: task.task_id)


def test_more_data_of_one_type_leave_the_choice_of_the_others_alone() -> None:
    extra = [Task(f"more/{n}", TASK_TYPES[0], "", "") for n in range(50)]
    before, after = (choose_tasks(games(60) + more, "alfworld", 60, 0) for more in ([], extra))
    others = [[task for task in chosen if task.task_type != TASK_TYPES[0]] for chosen in (before, after)]
    assert others[0] == others[1]


def test_too_few_games_are_said() -> None:
    with pytest.raises(UserError, match="48 training tasks where 500 are wanted"):
        choose_tasks(games(8), "alfworld", 500, 0)
    lopsided = [task for task in games(100) if task.task_type != TASK_TYPES[0] or task.task_id.endswith("0")]
    with pytest.raises(UserError, match=f"{TASK_TYPES[0]} has 10 tasks where"):
        choose_tasks(lopsided, "alfworld", 300, 0)


def test_quotas_add_up() -> None:
    assert proportional_quotas({"a": 1, "b": 1, "c": 1}, 2) == {"a": 1, "b": 1, "c": 0}
    assert proportional_quotas({"a": 70, "b": 20, "c": 10}, 10) == {"a": 7, "b": 2, "c": 1}
    assert proportional_quotas({"a": 5, "b": 5}, 10) == {"a": 5, "b": 5}


def test_the_script_writes_the_same_bytes_again_and_refuses_another_sample(sft_games: Path, tmp_path: Path) -> None:
    sample_alfworld(tmp_path, count=12, data_root=sft_games)
    files = SftFiles(tmp_path)
    before = hashlib.sha256(files.tasks.read_bytes()).hexdigest()
    sample_alfworld(tmp_path, count=12, data_root=sft_games)
    assert hashlib.sha256(files.tasks.read_bytes()).hexdigest() == before
    rows = list(read_records(files.tasks))
    assert Counter(row["task_type"] for row in rows) == dict.fromkeys(TASK_TYPES, 2)
    assert str(tmp_path) not in files.tasks.read_text("latin1")
    assert all(set(row) == {"benchmark", "task_id", "task_type", "split", "sha256"} for row in rows)
    with pytest.raises(UserError, match="holds another sample of tasks"):
        sample_alfworld(tmp_path, count=6, data_root=sft_games)
    with pytest.raises(UserError, match="no split 'train'"):
        sample_alfworld(tmp_path / "other", count=6, data_root=tmp_path)


def test_tasks_are_found_again_or_missed(setup: Setup, files: SftFiles, tmp_path: Path) -> None:
    assert len(sampled_tasks(files, setup.spec)) == 6
    first = sampled_tasks(files, setup.spec)[0]
    elsewhere = type(setup.spec)(str(tmp_path / "games"))
    target = tmp_path / "games" / first.task_id
    target.parent.mkdir(parents=True)
    target.write_text("{}")
    with pytest.raises(UserError, match="has another content now"):
        sampled_tasks(files, elsewhere)


def test_search_questions_keep_the_proportions_of_their_file(tmp_path: Path) -> None:
    rows = [QARow(source, f"{source} {n}?", ("x",)) for source in SOURCES[:5] for n in range(4)]
    write_processed(tmp_path / "sft_tasks.parquet", rows, "sft")
    words = ["search", f"env.train_data={tmp_path / 'sft_tasks.parquet'}"]
    sample_stage(words, tmp_path / "data", count=10, seed=0, embedded=False)
    found = list(read_records(SftFiles(tmp_path / "data").tasks))
    assert Counter(row["data_source"] for row in found) == dict.fromkeys(SOURCES[:5], 2)
    for row in found:
        assert rows[row["row_index"]].question == row["question"]
        assert row["answers"] == ["x"]
    with pytest.raises(UserError, match="20 training tasks where 500 are wanted"):
        sample_stage(words, tmp_path / "other", count=500, seed=0, embedded=False)
    with pytest.raises(UserError, match="do not depend on a model"):
        sample_stage(["search", "Qwen"], tmp_path / "other", count=5, seed=0, embedded=False)
