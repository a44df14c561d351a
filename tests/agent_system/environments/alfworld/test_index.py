from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from agent_system.environments.alfworld.index import TASK_TYPES, scan, survey, task_type_of
from agent_system.environments.alfworld.spec import AlfworldSpec
from agent_system.environments.base import Task


def add_game(root: Path, folder: str, trial: str = "trial_1", content: str = "{}") -> Path:
    path = root / "json_2.1.1" / "train" / folder / trial / "game.tw-pddl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_generated_games_are_listed_with_type_split_and_hash(games: Path, tasks: list[Task]) -> None:
    assert [task.task_id for task in tasks] == sorted(task.task_id for task in tasks)
    assert {task.task_type for task in tasks} == set(TASK_TYPES)
    for task in tasks:
        assert task.sha256 == hashlib.sha256(Path(task.location).read_bytes()).hexdigest()
        assert games / task.task_id == Path(task.location)
        assert task.extra["split"] == "train"


def test_released_games_agree_with_the_manifest(real_data: Path, real_tasks: list[Task]) -> None:
    lines = lzma.decompress((real_data / "MANIFEST.jsonl.xz").read_bytes()).splitlines()
    listed = {entry["game"]: entry for entry in map(json.loads, lines)}
    assert len(real_tasks) == 60
    for task in real_tasks:
        entry = listed[task.task_id]
        assert (task.sha256, task.task_type, task.extra["split"]) == (
            entry["sha256"],
            entry["task_type"],
            entry["split"],
        )


def test_the_data_folder_itself_is_a_root_too(games: Path, tasks: list[Task]) -> None:
    inner = scan(games / "json_2.1.1", "train")
    assert [task.sha256 for task in inner] == [task.sha256 for task in tasks]
    assert inner[0].task_id.startswith("train/")


def test_what_alfworld_leaves_out_is_left_out_and_counted(tmp_path: Path) -> None:
    add_game(tmp_path, "pick_and_place_simple-Mug-None-Desk-301")
    add_game(tmp_path, "pick_and_place_simple-AppleSliced-None-Fridge-1")
    add_game(tmp_path, "pick_and_place_with_movable_recep-Pen-Mug-Desk-301")
    add_game(tmp_path, "dance-Mug-None-Desk-301")
    pipe = tmp_path / "json_2.1.1" / "train" / "pick_and_place_simple-Cup-None-Desk-301" / "trial_1"
    pipe.mkdir(parents=True)
    os.mkfifo(pipe / "game.tw-pddl")  # reading it would wait for ever
    found = survey(tmp_path, "train")
    assert [task.task_type for task in found.tasks] == ["pick_and_place_simple"]
    assert found.skipped == Counter({"movable or sliced": 2, "unknown task type": 1, "not a file": 1})


@pytest.mark.parametrize("split", ["valid_seen", "", "trian"])
def test_a_missing_split_names_those_there_are_and_the_remedy(games: Path, split: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"found: train\).*alfworld-download -f.*rsipo games generate"):
        AlfworldSpec(str(games)).tasks(split)


def test_a_missing_or_empty_root_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="rsipo games generate"):
        scan(tmp_path / "nowhere", "train")
    (tmp_path / "train").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no game .*rsipo games generate"):
        scan(tmp_path, "train")


def test_hashes_are_remembered_by_size_and_time(games: Path, tmp_path: Path) -> None:
    root, cache = tmp_path / "games", tmp_path / "cache"
    shutil.copytree(games, root)
    first = scan(root, "train", cache)
    (record,) = (cache / "hashes").iterdir()
    remembered = json.loads(record.read_bytes())
    victim = Path(first[0].location)
    remembered[str(victim)][2] = "0" * 64
    record.write_text(json.dumps(remembered))
    assert scan(root, "train", cache)[0].sha256 == "0" * 64  # taken from the record
    os.utime(victim, ns=(1, 1))
    assert scan(root, "train", cache) == first  # hashed again
    record.write_text('{"truncated')
    assert scan(root, "train", cache) == first
    assert scan(root, "train", cache) == scan(root, "train")


def test_an_unwritable_cache_costs_only_time(games: Path, tasks: list[Task], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert scan(games, "train", tmp_path / "cache") == tasks


def test_task_types_come_from_the_folder_name() -> None:
    assert task_type_of("pick_two_obj_and_place-Pen-None-Desk-301") == "pick_two_obj_and_place"
    assert task_type_of("pick_two_obj-Pen") is None
