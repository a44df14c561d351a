"""What a step's rollouts gave, in files: to train on it once more without playing (docs/debugging.md).

One file per step, gzipped JSON lines: a head, then one task record per line. Arrays are base64 of their bytes and numbers are
written so that they read back the same, hence an update from a file equals the one it was saved in. Only the classes of a task
record are ever made from a file.
"""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agent_system.environments.base import Observation, PromptContext, Task
from agent_system.rollout.types import Episode, Generation, Turn
from rsipo.execution_check import SkillProgram, SkillWriting, TaskRecord
from rsipo.models import policy_files, policy_sha256
from rsipo.problems import UserError
from rsipo.record_lines import write_records
from rsipo.run_settings import RunSettings
from rsipo.split import Split

Play = Callable[[Any, Sequence[Task], int], list[Any]]

FORMAT = 2
_CLASSES = {
    kind.__name__: kind
    for kind in (TaskRecord, Task, Split, Episode, Turn, Generation, PromptContext, Observation, SkillWriting)
}
_KIND = "kind"


def encode(value: Any) -> Any:
    """A task record, or a part of one, as JSON's types."""
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {_KIND: "array", "dtype": value.dtype.str, "shape": list(value.shape), "data": data}
    if isinstance(value, tuple):
        return {_KIND: "tuple", "items": [encode(item) for item in value]}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {_KIND: "mapping", "items": {name: encode(item) for name, item in value.items()}}
    if type(value).__name__ in _CLASSES:
        fields = {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {_KIND: type(value).__name__, **fields}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"a task record holds a {type(value).__name__}")


def decode(value: Any) -> Any:
    """The opposite. Raises KeyError, TypeError or ValueError for what ``encode`` does not write."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind, rest = value[_KIND], {name: item for name, item in value.items() if name != _KIND}
    if kind == "array":
        data = np.frombuffer(base64.b64decode(rest["data"]), dtype=np.dtype(rest["dtype"]))
        return data.reshape(rest["shape"]).copy()
    if kind == "tuple":
        return tuple(decode(item) for item in rest["items"])
    if kind == "mapping":
        return {name: decode(item) for name, item in rest["items"].items()}
    return _CLASSES[kind](**{name: decode(item) for name, item in rest.items()})


def step_path(folder: Path, step: int) -> Path:
    """The file of a step's rollouts."""
    return folder / f"step-{step:06d}.jsonl.gz"


def rollout_identity(settings: RunSettings, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """What decides how a run's policy plays: its files' hash and the settings of prompts and environment, as JSON.

    ``progress`` as of ``policy_sha256``.
    """
    return {
        "policy": policy_sha256(policy_files(Path(settings.policy.path)), progress),
        "policy.chat_template_kwargs": settings.policy.chat_template_kwargs,
        **{f"prompt.{name}": value for name, value in settings.prompt.model_dump().items()},
        **{f"env.{name}": value for name, value in settings.env.protocol.items()},
    }


@dataclass(frozen=True)
class RolloutArchive:
    """The files of one run's rollouts.

    Attributes:
        folder: holds ``step-000001.jsonl.gz`` and so on.
        identity: what decides a run's rollouts besides the program (``rollout_identity``); must be the same where they are read.
    """

    folder: Path
    identity: Mapping[str, Any]

    def saving(self, play: Play) -> Play:
        """``play``, whose task records are also written."""

        def and_save(program: Any, tasks: Sequence[Task], step: int) -> list[Any]:
            results = play(program, tasks, step)
            if isinstance(program, SkillProgram):
                self.write(step, program, results)
            return results

        return and_save

    def play(self, program: Any, tasks: Sequence[Task], step: int) -> list[Any]:
        """The saved records of these tasks, in the place of playing them.

        Raises:
            UserError: they are not there, were played otherwise, or are of other tasks.
        """
        return self.read(step, program, tasks)

    def write(self, step: int, program: SkillProgram, records: Sequence[TaskRecord]) -> None:
        """Write a step's file, whole or not at all."""
        write_records(step_path(self.folder, step), (self._head(step, program), *map(encode, records)))

    def read(self, step: int, program: SkillProgram, tasks: Sequence[Task]) -> list[TaskRecord]:
        """See ``play``."""
        path = step_path(self.folder, step)
        try:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                head, *lines = (json.loads(line) for line in file)
            if not isinstance(head, dict):
                raise ValueError("its first line is no object")
        except FileNotFoundError:
            raise UserError(f"no saved rollouts of step {step}: {path} is missing") from None
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise UserError(f"{path} cannot be read: {error}") from error
        wanted = self._head(step, program)
        if differ := [name for name, value in wanted.items() if head.get(name) != value]:
            first = differ[0]
            raise UserError(f"{path} was saved with another {first}: {head.get(first)!r}, here {wanted[first]!r}")
        try:
            records: list[TaskRecord] = [decode(line) for line in lines]
            if strange := [record for record in records if not isinstance(record, TaskRecord)]:
                raise TypeError(f"a line is a {type(strange[0]).__name__}")
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} holds no task records of this version: {error!r}") from error
        if [(r.task.task_id, r.task.sha256) for r in records] != [(task.task_id, task.sha256) for task in tasks]:
            raise UserError(f"{path} is of other tasks than this run draws: same data, run.seed and tasks_per_step?")
        return records

    def _head(self, step: int, program: SkillProgram) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "step": step,
            **self.identity,
            "rollouts": program.num_rollouts,
            "replays": program.num_replays,
            "temperature": program.temperature,
            "skills": program.write_skills,
            "check": program.check,
            **{f"skill.{name}": value for name, value in program.skill.model_dump().items()},
        }
