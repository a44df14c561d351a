"""A checkpoint is complete or absent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from verl_ext.checkpoint import MARKER, CheckpointError, CheckpointStore


def write_model(folder: Path) -> None:
    (folder / "actor").mkdir()
    torch.save({"weight": torch.arange(8.0)}, folder / "actor" / "model.pt")


def test_the_newest_complete_one_is_found_and_read(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=None)
    assert store.latest() is None
    for step in (2, 10):
        store.save(step, {"step": step}, write_model)
    step, path = store.latest() or (0, tmp_path)
    assert (step, store.read_state(path)) == (10, {"step": 10})


@pytest.mark.parametrize("damage", ["marker", "missing", "truncated", "partial"])
def test_an_incomplete_one_is_never_taken(tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(tmp_path, keep=None)
    store.save(1, {"step": 1}, write_model)
    newest = store.save(2, {"step": 2}, write_model)
    model = newest / "actor" / "model.pt"
    if damage == "marker":
        (newest / MARKER).unlink()
    elif damage == "missing":
        model.unlink()
    elif damage == "truncated":
        model.write_bytes(model.read_bytes()[:-10])
    else:
        newest.rename(newest.with_suffix(".partial"))
    assert (store.latest() or (0,))[0] == 1


def test_a_failed_write_leaves_the_older_ones_alone(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    store.save(1, {"step": 1}, write_model)

    def full_disk(folder: Path) -> None:
        write_model(folder)
        raise OSError(28, "No space left on device")

    def cut_short(folder: Path) -> None:
        write_model(folder)
        model = folder / "actor" / "model.pt"
        model.write_bytes(model.read_bytes()[:-30])

    def worker_failed(folder: Path) -> None:
        raise RuntimeError("a worker's traceback\n  File …\nunexpected pos 64 vs 0\n")

    def interrupted(folder: Path) -> None:
        write_model(folder)
        raise KeyboardInterrupt

    for write, error, message in (
        (full_disk, CheckpointError, "free disk space"),
        (cut_short, CheckpointError, "not written whole"),
        (lambda folder: None, CheckpointError, "no tensor"),
        (worker_failed, CheckpointError, r"not written \(unexpected pos 64 vs 0\)"),
        (interrupted, KeyboardInterrupt, None),
    ):
        with pytest.raises(error, match=message):
            store.save(2, {"step": 2}, write)
        assert [path.name for path in tmp_path.iterdir()] == ["global_step_1"]


def test_what_a_killed_run_left_half_written_goes(tmp_path: Path) -> None:
    (tmp_path / "global_step_7.partial").mkdir()
    CheckpointStore(tmp_path, keep=1).save(8, {"step": 8}, write_model)
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_8"]


def test_older_ones_go_only_after_the_new_one_is_there(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2, 3):
        store.save(step, {"step": step}, write_model)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_2", "global_step_3"]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, {"step": 1, "run": "first"}, write_model)
    path = store.save(1, {"step": 1, "run": "second"}, write_model)
    assert store.read_state(path)["run"] == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_1"]
