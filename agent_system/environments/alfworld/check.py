"""Is a folder of games fit for use? Finds the bad ones and says why, whether generated or released."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import json
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_system.environments.alfworld import index
from agent_system.environments.alfworld.generator.interpreter import replay
from agent_system.environments.alfworld.generator.write import MANIFEST, read_manifest
from agent_system.environments.alfworld.safety import read_game
from agent_system.environments.base import BadTask

if TYPE_CHECKING:
    from agent_system.environments.alfworld.engine import GameEngine

OFFICIAL_COUNTS = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}


@dataclass(frozen=True)
class GameProblem:
    """A bad game (or manifest): its path relative to the root, and what is wrong with it."""

    path: str
    reason: str


@dataclass(frozen=True)
class CheckReport:
    """What :func:`check_games` found.

    Attributes:
        root: the checked folder.
        origin: ``generated`` (it has a manifest), ``official`` (ALFWorld's own trials) or ``unknown``.
        counts: split -> task type -> number of game files, bad ones included.
        skipped: split -> reason -> number of folders that neither ALFWorld nor we take for a game.
        expected: split -> number of games in ALFWorld's release; only for an official root.
        played: whether the walkthroughs were played in the engine, or only in the interpreter.
        problems: what is wrong, sorted by path.
    """

    root: str
    origin: str
    counts: Mapping[str, Mapping[str, int]]
    skipped: Mapping[str, Mapping[str, int]]
    expected: Mapping[str, int]
    played: bool
    problems: tuple[GameProblem, ...]

    @property
    def ok(self) -> bool:
        """No game is bad. A subset of the release is fine too, see :attr:`incomplete`."""
        return not self.problems

    @property
    def total(self) -> int:
        return sum(sum(types.values()) for types in self.counts.values())

    @property
    def incomplete(self) -> dict[str, tuple[int, int]]:
        """Split -> (games found, games in the release) wherever an official root has another number."""
        found = {split: sum(types.values()) for split, types in self.counts.items()}
        return {s: (found[s], expected) for s, expected in self.expected.items() if found[s] != expected}

    def as_dict(self) -> dict[str, Any]:
        """Plain data, JSON-ready."""
        return dataclasses.asdict(self) | {"ok": self.ok, "total": self.total, "incomplete": self.incomplete}


@dataclass(frozen=True)
class _Job:
    path: Path
    task_type: str
    sha256: str  # from the manifest; empty when there is none
    play: bool


def check_games(
    root: str | Path,
    *,
    splits: Iterable[str] | None = None,
    play: bool = True,
    progress: Callable[[int, int], None] | None = None,
    processes: int = 1,
) -> CheckReport:
    """Check every game below ``root``: readable, safe, unique, as the manifest has it, won by its walkthrough.

    Args:
        root: the data root (``ALFWORLD_DATA``) or its ``json_2.1.1`` folder.
        splits: only these; None for all that are there.
        play: play the walkthrough in the engine (0.05 to 1 s a game); False: in the interpreter (1 to 10 ms).
        progress: called with (games done, games in all).
        processes: number of processes that check games.

    Raises:
        FileNotFoundError: there is no such folder or split, or it holds no game.
        RuntimeError: a checking process died.
    """
    root = Path(root).expanduser().resolve()
    wanted = None if splits is None else list(splits)
    folders = _split_folders(root, wanted)
    problems: list[GameProblem] = []
    listed = _manifest(root, wanted, problems)
    counts: dict[str, Counter[str]] = {split: Counter() for split in folders}
    skipped: dict[str, Counter[str]] = {split: Counter() for split in folders}
    jobs = []
    for split, folder in folders.items():
        for path in _games(folder, skipped[split]):
            task_type = index.task_type_of(path.parent.parent.name)
            counts[split][task_type or "unknown"] += 1
            name = path.relative_to(root).as_posix()
            if task_type is None:
                problems.append(GameProblem(name, f"the folder {path.parent.parent.name!r} names no known task type"))
            else:
                jobs.append(_Job(path, task_type, str(listed.get(name, {}).get("sha256", "")), play))
            if listed and name not in listed:
                problems.append(GameProblem(name, f"not listed in {MANIFEST}"))

    first_with: dict[str, str] = {}
    with _mapper(processes) as run:
        for done, (job, (digest, reason)) in enumerate(zip(jobs, run(_examine, jobs), strict=True), start=1):
            name = job.path.relative_to(root).as_posix()
            if reason:
                problems.append(GameProblem(name, reason))
            first = first_with.setdefault(digest, name) if digest else name
            if first != name:
                problems.append(GameProblem(name, f"same content as {first}"))
            if progress:
                progress(done, len(jobs))

    origin = "generated" if listed else "official" if _all_official(jobs) else "unknown"
    return CheckReport(
        root=str(root),
        origin=origin,
        counts={split: dict(sorted(types.items())) for split, types in counts.items()},
        skipped={split: dict(reasons) for split, reasons in skipped.items()},
        expected={s: n for s, n in OFFICIAL_COUNTS.items() if s in folders} if origin == "official" else {},
        played=play,
        problems=tuple(sorted(problems, key=lambda problem: (problem.path, problem.reason))),
    )


def _split_folders(root: Path, wanted: list[str] | None) -> dict[str, Path]:
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}: {index.REMEDY}")
    available = index.splits(root)
    chosen = available if wanted is None else wanted
    if not available or not chosen:
        raise FileNotFoundError(f"no game ({index.GAME_FILE}) in {root}: {index.REMEDY}")
    if missing := [split for split in chosen if split not in available]:
        raise FileNotFoundError(f"no split {missing[0]!r} in {root} (found: {', '.join(available)}): {index.REMEDY}")
    bases = (root / index.DATA_FOLDER, root)
    return {split: next(base / split for base in bases if (base / split).is_dir()) for split in chosen}


def _games(folder: Path, skipped: Counter[str]) -> Iterator[Path]:
    """The game files of a split, sorted; what is not a game is counted in ``skipped``."""
    for trial in sorted(path for path in folder.glob("*/*") if path.is_dir()):
        if "movable" in trial.parent.name or "Sliced" in trial.parent.name:
            skipped["movable or sliced"] += 1
        elif not (trial / index.GAME_FILE).is_file():
            skipped[f"no {index.GAME_FILE}"] += 1
        else:
            yield trial / index.GAME_FILE


def _manifest(root: Path, wanted: list[str] | None, problems: list[GameProblem]) -> dict[str, dict[str, Any]]:
    """The manifest's entries for the wanted splits by path; missing files and equal games become problems."""
    try:
        entries = read_manifest(root)
    except (OSError, ValueError) as error:
        problems.append(GameProblem(MANIFEST, str(error)))
        return {}
    listed = {entry["path"]: entry for entry in entries if wanted is None or entry["split"] in wanted}
    first_with: dict[str, str] = {}
    for path, entry in listed.items():
        if not (root / path).is_file():
            problems.append(GameProblem(path, f"listed in {MANIFEST}, but the file is missing"))
        first = first_with.setdefault(entry.get("fingerprint", path), path)
        if first != path:
            problems.append(GameProblem(path, f"a player cannot tell it from {first}"))
    return listed


def _all_official(jobs: Sequence[_Job]) -> bool:
    """ALFRED's trials are named by the time they were recorded."""
    return bool(jobs) and all(job.path.parent.name.startswith("trial_T") for job in jobs)


@contextlib.contextmanager
def _mapper(processes: int) -> Iterator[Callable[..., Iterable[Any]]]:
    if processes <= 1:
        yield map
        return
    # Spawned, not forked: TextWorld's library must not be shared.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(processes, mp_context=context)
    try:
        yield functools.partial(pool.map, chunksize=4)
    except concurrent.futures.process.BrokenProcessPool as error:
        raise RuntimeError("a checking process died: check again with one process to see at which game") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _examine(job: _Job) -> tuple[str, str]:
    """(sha256 of the file, what is wrong with it); either is empty when there is nothing to tell."""
    digest = ""
    try:
        digest = hashlib.sha256(job.path.read_bytes()).hexdigest()
        game = read_game(job.path, sha256=job.sha256)
        _check_for_alfworld(job, game)
        if job.play:
            _play(game, job.path)
        else:
            replay(game["pddl_problem"], _walkthrough(game))
    except (KeyboardInterrupt, MemoryError):
        raise
    except (BadTask, ValueError, OSError) as error:
        # The path is reported apart.
        return digest, " ".join(str(error).replace(f"{job.path}: ", "").split())
    except BaseException as error:  # the translator even exits
        return digest, f"{type(error).__name__}: {error}"
    return digest, ""


def _walkthrough(game: Mapping[str, Any]) -> list[str]:
    if not game.get("walkthrough"):
        raise ValueError("it has no walkthrough that shows that it can be won")
    return game["walkthrough"]


def _check_for_alfworld(job: _Job, game: Mapping[str, Any]) -> None:
    """What the stock ``AlfredTWEnv`` asks of a game before it takes it; it drops others silently."""
    if "solvable" not in game:
        raise ValueError("'solvable' is missing, so that stock ALFWorld would drop it silently")
    try:
        trajectory = json.loads((job.path.parent / "traj_data.json").read_bytes())
        task_type = trajectory["task_type"]
    except FileNotFoundError:
        raise ValueError("traj_data.json is missing, so that stock ALFWorld would not find the game") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"traj_data.json cannot be read ({type(error).__name__}: {error})") from None
    if task_type != job.task_type:
        raise ValueError(f"traj_data.json says {task_type!r}, the folder {job.task_type!r}")


@functools.cache
def _engine() -> GameEngine:
    """One engine per process: each maps its own library, for good."""
    from agent_system.environments.alfworld.engine import GameEngine

    return GameEngine()


def _play(game: Mapping[str, Any], path: Path) -> None:
    commands = _walkthrough(game)
    frame = _engine().load(game, str(path))
    if frame.won:
        raise ValueError("the goal already holds at the start")
    for step, command in enumerate(commands, start=1):
        if frame.won:
            raise ValueError(f"the goal already holds before command {step}, {command!r}")
        if command not in frame.commands:
            raise ValueError(f"command {step} of the walkthrough, {command!r}, is not admissible then")
        frame = _engine().step(command)
    if not frame.won:
        raise ValueError(f"the goal does not hold after all {len(commands)} commands of the walkthrough")
