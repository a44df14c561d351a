"""A step's rollouts in a file: what is read is what was written, and what does not fit is one line."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent_system.environments.base import Task
from rsipo.execution_check import SkillProgram, SkillWriting, TaskRecord
from rsipo.problems import UserError
from rsipo.saved_rollouts import RolloutArchive, decode, encode, step_path
from rsipo.settings import SkillSettings
from rsipo.split import Split

TASK = Task("game", "pick", "/games/game", "a" * 64, {"split": "train", "answers": ("x", "y")})


@pytest.fixture
def program() -> SkillProgram:
    return SkillProgram(2, 1, 1.0, SkillSettings())


@pytest.fixture
def record(make_episode: Callable) -> TaskRecord:
    none = np.empty(0, np.int32)
    skill = SkillWriting(
        none,
        np.array([3, 4], np.int32),
        np.array([-0.1, -np.pi], np.float32),
        "…",
        "look",
        True,
        "",
        np.array([True, False]),
    )
    lost = dataclasses.replace(make_episode(1), status="timeout", error="late")
    return TaskRecord(
        TASK,
        Split((0,), (1,)),
        [make_episode(2), lost],
        [skill, None],
        0,
        skill,
        [make_episode(1)],
        [True],
        True,
        ["lost"],
    )


@pytest.fixture
def archive(tmp_path: Path) -> RolloutArchive:
    return RolloutArchive(tmp_path / "rollouts", {"policy": "a" * 64, "env.max_turns": 12})


def same(one: Any, other: Any) -> bool:
    """Equal, with arrays compared by type and bytes."""
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one)
        )
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_a_step_is_read_as_it_was_written(archive: RolloutArchive, program: SkillProgram, record: TaskRecord) -> None:
    played = archive.saving(lambda program, tasks, step: [record])(program, [TASK], 3)
    assert played == [record]
    (read,) = archive.play(program, [TASK], 3)
    assert same(read, record)
    assert [path.name for path in archive.folder.iterdir()] == ["step-000003.jsonl.gz"]


def test_only_a_records_own_classes_are_written_and_made(record: TaskRecord) -> None:
    with pytest.raises(TypeError, match="holds a PosixPath"):
        encode(dataclasses.replace(record, errors=[Path("x")]))
    with pytest.raises(KeyError, match="Path"):
        decode({"kind": "Path", "path": "/"})


def test_what_does_not_fit_is_one_line(archive: RolloutArchive, program: SkillProgram, record: TaskRecord) -> None:
    with pytest.raises(UserError, match=r"no saved rollouts of step 1: .*step-000001\.jsonl\.gz is missing"):
        archive.play(program, [TASK], 1)
    archive.write(1, program, [record])
    with pytest.raises(UserError, match="saved with another replays: 1, here 4"):
        archive.play(dataclasses.replace(program, num_replays=4), [TASK], 1)
    with pytest.raises(UserError, match=r"saved with another temperature: 1\.0, here 0\.4"):
        archive.play(dataclasses.replace(program, temperature=0.4), [TASK], 1)
    with pytest.raises(UserError, match="other tasks than this run draws"):
        archive.play(program, [dataclasses.replace(TASK, sha256="b" * 64)], 1)
    with pytest.raises(UserError, match=r"saved with another skill\.min_words: 5, here 6"):
        archive.play(dataclasses.replace(program, skill=SkillSettings(min_words=6)), [TASK], 1)
    for identity, message in (
        ({**archive.identity, "policy": "b" * 64}, "saved with another policy"),
        ({**archive.identity, "env.max_turns": 10}, r"saved with another env\.max_turns: 12, here 10"),
    ):
        with pytest.raises(UserError, match=message):
            RolloutArchive(archive.folder, identity).play(program, [TASK], 1)
    path = step_path(archive.folder, 1)
    head, line = gzip.decompress(path.read_bytes()).decode().splitlines()
    path.write_bytes(gzip.compress("\n".join([head, json.dumps({**json.loads(line), "more": 1})]).encode()))
    with pytest.raises(UserError, match="holds no task records of this version"):
        archive.play(program, [TASK], 1)
    for content, message in (("[]", "its first line is no object"), (f"{head}\n3", "a line is a int")):
        path.write_bytes(gzip.compress(content.encode()))
        with pytest.raises(UserError, match=message):
            archive.play(program, [TASK], 1)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="cannot be read"):
        archive.play(program, [TASK], 1)
