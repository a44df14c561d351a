"""The explicit list of games: sorted by path, hashed, with task type and split read from the path.

Layout, as ``alfworld-download`` and ``rsipo games generate`` write it::

    <root>/json_2.1.1/<split>/<task type>-<object>-<...>-<scene>/<trial>/game.tw-pddl
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agent_system.environments.base import Task
from agent_system.files import write_atomically

logger = logging.getLogger(__name__)

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
SPLITS = ("train", "valid_seen", "valid_unseen", "valid_train")
DATA_FOLDER = "json_2.1.1"
GAME_FILE = "game.tw-pddl"

REMEDY = (
    "download the games with `alfworld-download -f` and set ALFWORLD_DATA, "
    "or generate some with `rsipo games generate --out DIR`"
)


@dataclass(frozen=True)
class Survey:
    """What a split's folder holds: the playable ``tasks``, sorted by id, and how many were left out, by reason."""

    tasks: list[Task]
    skipped: Counter[str] = field(default_factory=Counter)


def scan(root: str | Path, split: str, cache_dir: str | Path | None = None) -> list[Task]:
    """The tasks of a split, sorted by id. See :func:`survey`."""
    return survey(root, split, cache_dir).tasks


def survey(root: str | Path, split: str, cache_dir: str | Path | None = None) -> Survey:
    """Lists a split without loading a game.

    Args:
        root: the data root (``ALFWORLD_DATA``); its ``json_2.1.1`` folder is accepted too.
        split: the name of a folder, such as ``train``, ``valid_seen`` or ``valid_unseen``.
        cache_dir: where to remember the hashes by (path, size, modification time); None hashes every file.

    Raises FileNotFoundError, with the remedy, when the folder is missing or holds no game.
    """
    base = Path(root).expanduser().resolve()
    folder = _split_folder(base, split)
    hashes = _HashCache(folder, cache_dir)
    tasks, skipped = [], Counter[str]()
    for path in sorted(folder.glob(f"*/*/{GAME_FILE}"), key=lambda path: path.as_posix()):
        name = path.parent.parent.name
        task_type = task_type_of(name)
        if "movable" in name or "Sliced" in name:
            skipped["movable or sliced"] += 1
        elif not path.is_file():  # a broken link, a pipe, a device
            skipped["not a file"] += 1
        elif task_type is None:
            skipped["unknown task type"] += 1
        else:
            task_id = path.relative_to(base).as_posix()
            tasks.append(Task(task_id, task_type, str(path), hashes.of(path), extra={"split": split}))
    hashes.save()
    if not tasks:
        raise FileNotFoundError(f"no game ({GAME_FILE}) in {folder}: {REMEDY}")
    return Survey(tasks, skipped)


def splits(root: str | Path) -> list[str]:
    """The names of the folders beside which a split may be chosen; empty when there are none."""
    return sorted({path.name for base in _bases(Path(root).expanduser()) for path in _folders(base)})


def task_type_of(folder_name: str) -> str | None:
    """The task type of a game from its folder's name, such as ``pick_two_obj_and_place-Pen-None-Desk-301``."""
    kind = folder_name.split("-", 1)[0]
    return kind if kind in TASK_TYPES else None


def _split_folder(root: Path, split: str) -> Path:
    for base in _bases(root):
        if split and (base / split).is_dir():
            return base / split
    found = ", ".join(splits(root)) or "none"
    raise FileNotFoundError(f"no split {split!r} of ALFWorld games under {root} (found: {found}): {REMEDY}")


def _bases(root: Path) -> list[Path]:
    """Where the split folders may lie: in ``json_2.1.1`` or directly in the root."""
    return [root / DATA_FOLDER, root]


def _folders(base: Path) -> Iterator[Path]:
    if base.is_dir():
        yield from (path for path in base.iterdir() if path.is_dir() and any(path.glob(f"*/*/{GAME_FILE}")))


class _HashCache:
    """SHA-256 of files, remembered on disk. One JSON file per split folder; a corrupt one is ignored and rewritten."""

    def __init__(self, folder: Path, cache_dir: str | Path | None) -> None:
        self._entries: dict[str, list[int | str]] = {}
        self._known: dict[str, list[int | str]] = {}
        self._file: Path | None = None
        if cache_dir is not None:
            name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
            self._file = Path(cache_dir).expanduser() / "hashes" / f"{name}.json"
            try:
                loaded = json.loads(self._file.read_bytes())
                self._known = loaded if isinstance(loaded, dict) else {}
            except (OSError, ValueError):
                self._known = {}

    def of(self, path: Path) -> str:
        status = path.stat()
        key, stamp = str(path), [status.st_size, status.st_mtime_ns]
        known = self._known.get(key)
        if isinstance(known, list) and known[:2] == stamp and len(known) == 3 and isinstance(known[2], str):
            digest = known[2]
        else:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        self._entries[key] = [*stamp, digest]
        return digest

    def save(self) -> None:
        if self._file is None or self._entries == self._known:
            return
        try:
            write_atomically(self._file, json.dumps(self._entries).encode())
        except OSError as error:
            logger.warning("cannot write %s (%s); the games will be hashed again next time", self._file, error)
