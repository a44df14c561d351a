"""Writing generated games to disk: one split at a time, all of it or nothing.

A split is built in a hidden folder beside the data and moved into place by one rename, after its games are listed in
``MANIFEST.jsonl``. An interruption at any point leaves either no split or a whole one, and a second run of the same
request redoes what is missing. Several splits, made in separate runs, share one root and one manifest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent_system.environments.alfworld.generator.build import FILES, GAME_FILE, build_game
from agent_system.environments.alfworld.generator.package import alfworld_package
from agent_system.environments.alfworld.generator.presets import Preset, one_of, resolve_preset
from agent_system.environments.alfworld.generator.scene import GENERATOR_VERSION
from agent_system.environments.alfworld.generator.tables import SPLITS, TASK_TYPES
from agent_system.files import write_atomically

MANIFEST = "MANIFEST.jsonl"
DATA = "json_2.1.1"
# AlfredTWEnv silently drops games whose path contains one of these.
_DROPPED_BY_ALFWORLD = ("movable", "Sliced")


@dataclass(frozen=True)
class GenerationReport:
    """What :func:`generate_games` did.

    Attributes:
        root: the folder of the games, to be given as ``ALFWORLD_DATA``.
        split: the split that was made.
        status: ``written``; ``reused`` when the very same games were there; ``repaired`` when they were there but
            damaged or incomplete, and were made again.
        per_task: number of games of each task type.
        manifest: path of the manifest.
    """

    root: Path
    split: str
    status: Literal["written", "reused", "repaired"]
    per_task: Mapping[str, int]
    manifest: Path

    @property
    def count(self) -> int:
        return sum(self.per_task.values())


def generate_games(
    out: str | os.PathLike[str],
    *,
    split: str = "train",
    count: int,
    size: str = "tiny",
    seed: int = 0,
    task: str | None = None,
    knobs: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> GenerationReport:
    """Write ``count`` games of one split below ``out``, the six task types in turn.

    The games are a function of the arguments and of the installed ``alfworld`` alone, byte for byte; the first games
    of a longer request are those of a shorter one. Within a split all are distinct, and the splits share no game.

    Args:
        out: root of the data; created when missing.
        split: train, valid_seen or valid_unseen (rooms that the other two do not have).
        count: number of games, at least 1.
        size: micro, tiny, small or real.
        seed: at least 0.
        task: only this task type; None for all six.
        knobs: changes to the size, see :class:`~.presets.Preset`.
        progress: called with (games done, games in all).

    Raises:
        ValueError: a bad argument, or more games than the size allows. Nothing is written.
        FileExistsError: the split already holds other games. Nothing is touched.
        OSError: the disk is full or not writable. What was there before is still there.
        RuntimeError: ``alfworld`` is missing.
    """
    root = Path(out).expanduser().resolve()
    preset = resolve_preset(size, knobs)
    one_of("split", split, SPLITS)
    tasks = TASK_TYPES if task is None else (one_of("task type", task, TASK_TYPES),)
    _check_whole("count", count, least=1)
    _check_whole("seed", seed, least=0)
    if word := next((word for word in _DROPPED_BY_ALFWORLD if word in str(root)), None):
        raise ValueError(f"ALFWorld ignores games whose path contains {word!r}, as {root} does: choose another folder")
    if root.exists() and not root.is_dir():
        raise FileExistsError(f"{root} is a file, not a folder")

    request = _request_id(split, count, preset, seed, task)
    with _locked(root):
        found = _inspect(root, split, request)
        if found == "whole":
            status: Literal["written", "reused", "repaired"] = "reused"
            if progress:
                progress(count, count)
        else:
            _write_split(root, split, count, preset, seed, tasks, request, progress)
            status = "repaired" if found == "damaged" else "written"
        entries = [entry for entry in read_manifest(root) if entry["split"] == split]
    per_task = Counter(entry["task_type"] for entry in entries)
    return GenerationReport(root, split, status, {t: per_task[t] for t in TASK_TYPES if t in per_task}, root / MANIFEST)


def read_manifest(root: Path) -> list[dict[str, Any]]:
    """The entries of a root's manifest, sorted by path; empty when there is none.

    Each has ``path`` (of game.tw-pddl, relative to the root), ``split``, ``task_type``, ``sha256``, ``fingerprint``,
    ``walkthrough_steps``, ``preset``, ``knobs``, ``seed``, ``index`` and ``request``, an id of the run that made it.

    Raises:
        ValueError: the manifest is not readable; the message names the line.
    """
    path = root / MANIFEST
    if not path.exists():
        return []
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            entry = json.loads(line)
            if not {"path", "split", "task_type", "sha256", "request"} <= entry.keys():
                raise ValueError("fields are missing")
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}: not a manifest of generated games ({error})") from None
        entries.append(entry)
    return entries


def _check_whole(name: str, value: int, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")


def _request_id(split: str, count: int, preset: Preset, seed: int, task: str | None) -> str:
    """Equal for requests that give the same bytes, so it includes what the package contributes."""
    request = [GENERATOR_VERSION, alfworld_package().digest, split, count, preset.name, preset.settings(), seed, task]
    return hashlib.sha256(json.dumps(request).encode()).hexdigest()[:16]


def _inspect(root: Path, split: str, request: str) -> Literal["absent", "whole", "damaged"]:
    """What is there of this request. Raises FileExistsError when the split holds anything else."""
    remedy = "choose another folder, or remove this one first"
    folder = root / DATA / split
    entries = [entry for entry in read_manifest(root) if entry["split"] == split]
    there = {path.relative_to(root).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    if entries and any(entry["request"] != request for entry in entries):
        if there:
            raise FileExistsError(f"{folder} holds the games of another request ({_describe(entries)}): {remedy}")
        return "absent"  # somebody removed those games; the manifest is brought up to date
    foreign = there - {str(Path(entry["path"]).with_name(name)) for entry in entries for name in FILES}
    whole = bool(entries) and all(_is_intact(root / entry["path"], entry["sha256"]) for entry in entries)
    if foreign and not (whole and not any(path.endswith(GAME_FILE) for path in foreign)):
        raise FileExistsError(f"{folder} holds files that were not made here, such as {min(foreign)}: {remedy}")
    if not entries:
        return "absent"
    return "whole" if whole else "damaged"


def _describe(entries: list[dict[str, Any]]) -> str:
    first = entries[0]
    knobs = f", knobs {json.dumps(first['knobs'])}" if first.get("knobs") else ""
    return f"size {first.get('preset')}, seed {first.get('seed')}, {len(entries)} games{knobs}"


def _is_intact(game: Path, sha256: str) -> bool:
    try:
        return (
            all((game.parent / name).stat().st_size for name in FILES)
            and hashlib.sha256(game.read_bytes()).hexdigest() == sha256
        )
    except OSError:
        return False


def _write_split(
    root: Path,
    split: str,
    count: int,
    preset: Preset,
    seed: int,
    tasks: tuple[str, ...],
    request: str,
    progress: Callable[[int, int], None] | None,
) -> None:
    knobs = _turned_knobs(preset)
    entries: list[dict[str, Any]] = []
    taken: set[str] = set()
    with _hidden_folder(root, f".partial-{split}") as partial:
        for index in range(count):
            game = build_game(seed, index, split, tasks[index % len(tasks)], preset, taken)
            taken.add(game.fingerprint)
            folder = partial / game.folder
            folder.mkdir(parents=True)
            for name, text in game.files.items():
                (folder / name).write_bytes(text.encode())
            entries.append(
                {
                    "path": f"{game.folder}/{GAME_FILE}",
                    "split": split,
                    "task_type": game.task_type,
                    "sha256": game.sha256,
                    "fingerprint": game.fingerprint,
                    "walkthrough_steps": len(game.walkthrough),
                    "preset": preset.name,
                    "knobs": knobs,
                    "seed": seed,
                    "index": index,
                    "request": request,
                }
            )
            if progress:
                progress(index + 1, count)
        # The manifest first: listed games that are missing are made again, unlisted ones would be refused.
        _merge_into_manifest(root, split, entries)
        target = root / DATA / split
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            target.rename(partial / "replaced")
        (partial / DATA / split).rename(target)


def _turned_knobs(preset: Preset) -> dict[str, Any]:
    standard = resolve_preset(preset.name).model_dump(mode="json")
    return {name: value for name, value in preset.model_dump(mode="json").items() if value != standard[name]}


def _merge_into_manifest(root: Path, split: str, entries: list[dict[str, Any]]) -> None:
    merged = [entry for entry in read_manifest(root) if entry["split"] != split] + entries
    merged.sort(key=lambda entry: entry["path"])
    text = "".join(json.dumps(entry) + "\n" for entry in merged)
    write_atomically(root / MANIFEST, text)


@contextlib.contextmanager
def _hidden_folder(root: Path, name: str) -> Iterator[Path]:
    """An empty folder in ``root`` that is gone afterwards; one that a killed run left behind is removed first."""
    folder = root / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """One generation at a time in a root; others wait. A new root that stays empty is removed again."""
    created = not root.exists()
    root.mkdir(parents=True, exist_ok=True)
    lock = root / ".lock"
    with contextlib.ExitStack() as stack:
        # A finished folder may be read-only, and some network file systems have no locks.
        with contextlib.suppress(OSError):
            fcntl.flock(stack.enter_context(open(lock, "w")), fcntl.LOCK_EX)
        try:
            yield
        except BaseException:
            if created and not (root / MANIFEST).exists():
                lock.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    root.rmdir()
            raise
