"""PDDL to SAS by Fast Downward's Python translator, remembered: it takes most of the time of loading a game.

Only what TextWorld reads of a translation is kept, as plain JSON (never a pickle: a cache folder must not run code).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import logging
import sys
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fast_downward.interface

from agent_system.files import write_atomically

logger = logging.getLogger(__name__)

_FORMAT = "1"
_VERSIONS = tuple(f"{name} {importlib.metadata.version(name)}" for name in ("textworld", "fast-downward-textworld"))


class Translation:
    """A translated problem.

    Attributes:
        sas: the planning task in SAS format.
        task: stands in for Fast Downward's task object; has the fields TextWorld reads: ``actions`` (name, parameters),
            ``types`` (name, supertype_names), ``objects`` (name, type_name), ``init`` (atoms: predicate, args).
    """

    __slots__ = ("sas", "task")

    def __init__(self, record: dict[str, Any]) -> None:
        from fast_downward.translate.pddl.conditions import Atom

        self.sas: str = record["sas"]
        self.task = SimpleNamespace(
            actions=[
                SimpleNamespace(
                    name=name,
                    parameters=[SimpleNamespace(name=variable, type_name=kind) for variable, kind in parameters],
                )
                for name, parameters in record["actions"]
            ],
            types=[SimpleNamespace(name=name, supertype_names=supertypes) for name, supertypes in record["types"]],
            objects=[SimpleNamespace(name=name, type_name=kind) for name, kind in record["objects"]],
            init=[Atom(predicate, args) for predicate, args in record["init"]],
        )


class TranslationCache:
    """Translations by content, in memory (the most recent ``capacity``) and, with a ``directory``, on disk.

    A file that is missing, corrupt or of another version is computed again. A folder that cannot be written costs
    speed, not correctness. ``misses`` counts translations actually computed, ``disk_hits`` those read from disk.
    """

    def __init__(self, directory: str | Path | None = None, capacity: int = 64) -> None:
        self._directory = None if directory is None else Path(directory).expanduser() / "translations"
        self._capacity = capacity
        self._memory: OrderedDict[str, Translation] = OrderedDict()
        self.misses = 0
        self.disk_hits = 0

    def get(self, domain: str, problem: str) -> Translation:
        """The translation of a problem. Raises what the translator raises on bad PDDL, SystemExit included."""
        key = hashlib.sha256("\0".join((_FORMAT, *_VERSIONS, domain, problem)).encode()).hexdigest()
        translation = self._memory.get(key)
        if translation is None:
            translation = self._memory[key] = self._read(key) or self._compute(key, domain, problem)
        self._memory.move_to_end(key)
        while len(self._memory) > self._capacity:
            self._memory.popitem(last=False)
        return translation

    def _path(self, key: str) -> Path | None:
        return None if self._directory is None else self._directory / key[:2] / f"{key}.json.z"

    def _read(self, key: str) -> Translation | None:
        path = self._path(key)
        if path is None or not path.is_file():
            return None
        try:
            record = json.loads(zlib.decompress(path.read_bytes()))  # zlib's checksum finds flipped and missing bytes
            if record["key"] != key:
                raise ValueError("the file belongs to another game")
            translation = Translation(record)
        except (OSError, zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("corrupt translation %s (%s); translating again", path, error)
            return None
        self.disk_hits += 1
        return translation

    def _compute(self, key: str, domain: str, problem: str) -> Translation:
        self.misses += 1
        record = {"key": key, **translate(domain, problem)}
        path = self._path(key)
        if path is not None:
            try:
                write_atomically(path, zlib.compress(json.dumps(record).encode(), 6))
            except OSError as error:
                logger.warning("cannot write %s (%s); going on without it", path, error)
        return Translation(record)


@lru_cache(maxsize=8)
def shared_cache(directory: str | None) -> TranslationCache:
    """The one cache of a process for ``directory``, shared by all its slots."""
    return TranslationCache(directory)


def translate(domain: str, problem: str) -> dict[str, Any]:
    """What TextWorld needs of a problem, as JSON types. Raises what the translator raises, SystemExit included."""
    from fast_downward.translate.pddl.conditions import Atom

    with preserved_process_state():
        task, sas = fast_downward.interface.pddl2sas(domain, problem)
    return {
        "sas": sas,
        "actions": [[a.name, [[p.name, p.type_name] for p in a.parameters]] for a in task.actions],
        "types": [[t.name, list(t.supertype_names)] for t in task.types],
        "objects": [[o.name, o.type_name] for o in task.objects],
        # TextWorld skips equalities, costs and distances; every fluent of ALFWorld's domain is one of the latter two.
        "init": [[f.predicate, list(f.args)] for f in task.init if isinstance(f, Atom) and f.predicate != "="],
    }


@contextlib.contextmanager
def preserved_process_state() -> Iterator[None]:
    """Puts back ``sys.argv`` and ``sys.stdout``, which the translator overwrites."""
    argv, stdout = sys.argv, sys.stdout
    try:
        yield
    finally:
        sys.argv, sys.stdout = argv, stdout
