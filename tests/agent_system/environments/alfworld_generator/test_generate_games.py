"""Writing splits to disk: identical bytes, all or nothing, never mixed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_system.environments.alfworld import index
from agent_system.environments.alfworld.check import check_games
from agent_system.environments.alfworld.generator import SPLITS, TASK_TYPES, generate_games
from agent_system.environments.alfworld.generator.write import read_manifest

SCRIPT = """
import os, signal, sys
from agent_system.environments.alfworld.generator import generate_games
out, last = sys.argv[1], int(sys.argv[2])
def progress(done, total):
    if done == last:
        os.kill(os.getpid(), signal.SIGKILL)
for split in ("train", "valid_unseen"):
    generate_games(out, split=split, count=18, size="small", seed=7, progress=progress)
"""


def run_script(out: Path, hash_seed: str, kill_at: int = -1) -> int:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", SCRIPT, str(out), str(kill_at)]
    return subprocess.run(command, env=environment, check=False, timeout=120).returncode


def test_bytes_do_not_depend_on_the_hash_seed(tmp_path: Path, tree_hash: Callable[[Path], str]) -> None:
    assert run_script(tmp_path / "a", "1") == run_script(tmp_path / "b", "2") == 0
    assert tree_hash(tmp_path / "a") == tree_hash(tmp_path / "b")
    assert len(list((tmp_path / "a").rglob("game.tw-pddl"))) == 36


def test_killed_run_is_redone(tmp_path: Path, tree_hash: Callable[[Path], str]) -> None:
    assert run_script(tmp_path / "a", "0", kill_at=10) == -signal.SIGKILL
    assert not list((tmp_path / "a").glob("json_2.1.1/*/*/*"))
    assert run_script(tmp_path / "a", "0") == run_script(tmp_path / "b", "0") == 0
    assert tree_hash(tmp_path / "a") == tree_hash(tmp_path / "b")


def test_full_disk_leaves_nothing_half_written(tmp_path: Path, tree_hash: Callable[[Path], str]) -> None:
    """A limit on the size of files stands in for the full disk: writing the first game fails."""
    generate_games(tmp_path, count=6, split="valid_seen")
    before = tree_hash(tmp_path)
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
        "from agent_system.environments.alfworld.generator import generate_games\n"
        "try: generate_games(sys.argv[1], count=6)\n"
        "except OSError as error: print('refused:', error)"
    )
    command = [sys.executable, "-B", "-c", script, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.startswith("refused: ")
    assert tree_hash(tmp_path) == before
    assert generate_games(tmp_path, count=6).status == "written"


def test_runs_for_different_splits_do_not_lose_each_others_entries(tmp_path: Path) -> None:
    script = (
        "import sys; from agent_system.environments.alfworld.generator import generate_games\n"
        "generate_games(sys.argv[1], count=60, size='micro', split=sys.argv[2])"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), split]) for split in SPLITS]
    assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    assert Counter(entry["split"] for entry in read_manifest(tmp_path)) == dict.fromkeys(SPLITS, 60)
    assert check_games(tmp_path, play=False).ok


def test_finished_games_are_reused_from_a_read_only_folder(tmp_path: Path) -> None:
    generate_games(tmp_path, count=6)
    lock = tmp_path / ".lock"
    lock.unlink()
    lock.mkdir()  # cannot be opened for writing, not even by root
    assert generate_games(tmp_path, count=6).status == "reused"


def test_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_games(tmp_path / "games", count=6, progress=interrupt)
    assert not (tmp_path / "games").exists()


def test_task_types_take_turns_and_splits_share_a_root(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    for split in SPLITS:
        report = generate_games(tmp_path, split=split, count=12, progress=lambda *done: seen.append(done))
        assert report.status == "written"
        assert report.per_task == dict.fromkeys(TASK_TYPES, 2)
        assert report.count == 12
    assert seen == [(done, 12) for done in range(1, 13)] * 3
    entries = read_manifest(tmp_path)
    assert len({entry["fingerprint"] for entry in entries}) == len(entries) == 36
    for split in SPLITS:
        tasks = index.scan(tmp_path, split)
        listed = {entry["path"]: entry for entry in entries if entry["split"] == split}
        assert {task.task_id: task.sha256 for task in tasks} == {path: e["sha256"] for path, e in listed.items()}
        assert Counter(task.task_type for task in tasks) == Counter(entry["task_type"] for entry in listed.values())
    assert check_games(tmp_path, play=False).ok


def test_task_types_and_splits_are_those_of_the_index() -> None:
    assert TASK_TYPES == index.TASK_TYPES
    assert set(SPLITS) < set(index.SPLITS)


def test_one_task_type_only(tmp_path: Path) -> None:
    report = generate_games(tmp_path, count=5, size="micro", task="look_at_obj_in_light")
    assert report.per_task == {"look_at_obj_in_light": 5}


def test_shorter_request_is_a_prefix_of_a_longer_one(tmp_path: Path) -> None:
    short, long = (generate_games(tmp_path / str(count), count=count).root for count in (6, 12))
    assert {entry["sha256"] for entry in read_manifest(short)} < {entry["sha256"] for entry in read_manifest(long)}


def test_same_request_reuses_the_games(tmp_path: Path) -> None:
    generate_games(tmp_path, count=6)
    game = next(tmp_path.rglob("game.tw-pddl"))
    before = game.stat().st_mtime_ns
    assert generate_games(tmp_path, count=6).status == "reused"
    assert game.stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["missing game", "truncated game", "empty trajectory", "missing split"])
def test_damaged_split_is_made_again(damage: str, tmp_path: Path, tree_hash: Callable[[Path], str]) -> None:
    generate_games(tmp_path, count=6)
    whole = tree_hash(tmp_path)
    game = next(tmp_path.rglob("game.tw-pddl"))
    if damage == "missing game":
        shutil.rmtree(game.parent.parent)
    elif damage == "truncated game":
        game.write_bytes(game.read_bytes()[:1000])
    elif damage == "empty trajectory":
        game.with_name("traj_data.json").write_text("")
    else:
        shutil.rmtree(tmp_path / "json_2.1.1" / "train")
    assert generate_games(tmp_path, count=6).status == "repaired"
    assert tree_hash(tmp_path) == whole


@pytest.mark.parametrize("change", [{"count": 7}, {"seed": 1}, {"size": "micro"}, {"knobs": {"hide": 1.0}}])
def test_other_request_is_refused(change: dict[str, object], tmp_path: Path, tree_hash: Callable[[Path], str]) -> None:
    generate_games(tmp_path, count=6)
    before = tree_hash(tmp_path)
    with pytest.raises(FileExistsError, match="another request"):
        generate_games(tmp_path, **({"count": 6} | change))  # type: ignore[arg-type]
    assert tree_hash(tmp_path) == before
    assert generate_games(tmp_path, count=6, split="valid_seen").status == "written"


def test_foreign_games_are_never_touched(tmp_path: Path, tree_hash: Callable[[Path], str]) -> None:
    generate_games(tmp_path / "games", count=6)
    stranger = tmp_path / "games" / "json_2.1.1" / "train" / "a" / "b" / "game.tw-pddl"
    stranger.parent.mkdir(parents=True)
    stranger.write_text("{}")
    before = tree_hash(tmp_path)
    for arguments in ({"count": 6}, {"count": 6, "seed": 1}):
        with pytest.raises(FileExistsError):
            generate_games(tmp_path / "games", **arguments)
    (tmp_path / "games" / "MANIFEST.jsonl").rename(tmp_path / "aside")
    with pytest.raises(FileExistsError, match="not made here"):
        generate_games(tmp_path / "games", count=6)
    (tmp_path / "aside").rename(tmp_path / "games" / "MANIFEST.jsonl")
    assert tree_hash(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "count must be a whole number of at least 1, not 0"),
        ({"count": 1.5}, "count must be a whole number"),
        ({"count": True}, "count must be a whole number"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"split": "test"}, "unknown split 'test'"),
        ({"split": "valid-seen"}, "did you mean 'valid_seen'"),
        ({"size": "big"}, "unknown size 'big'"),
        ({"task": "pick_and_place"}, "did you mean 'pick_and_place_simple'"),
        ({"knobs": {"object": 3}}, "did you mean 'objects'"),
        ({"size": "micro", "task": "look_at_obj_in_light", "count": 100000}, "found no new look_at_obj_in_light game"),
    ],
)
def test_bad_requests_write_nothing(arguments: dict[str, object], message: str, tmp_path: Path) -> None:
    if arguments.get("count") == 100000:
        # A size so small that its games run out soon.
        arguments = arguments | {"knobs": {"scenes": [1, 1], "objects": [1, 1], "receptacles": [3, 3]}}
    with pytest.raises(ValueError, match=message):
        generate_games(tmp_path / "games", **({"count": 6} | arguments))  # type: ignore[arg-type]
    assert not (tmp_path / "games").exists()


@pytest.mark.parametrize("word", ["movable", "Sliced"])
def test_paths_that_alfworld_would_drop_are_refused(word: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=word):
        generate_games(tmp_path / f"my_{word}_games", count=1)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "games").write_text("")
    with pytest.raises(FileExistsError, match="is a file"):
        generate_games(tmp_path / "games", count=1)


def test_broken_manifest_is_named_by_line(tmp_path: Path) -> None:
    (tmp_path / "MANIFEST.jsonl").write_text(json.dumps({"sha256": "0"}) + "\n")
    with pytest.raises(ValueError, match="line 1"):
        generate_games(tmp_path, count=1)
