"""The domain, the grammar and the object tables of the installed ``alfworld``.

``alfworld`` is located and read but never imported: its ``__init__`` creates folders in the user's home.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

GOAL_PLACEHOLDER = "UNKNOWN GOAL"


@dataclass(frozen=True)
class Package:
    """What a game takes over from ``alfworld``.

    Attributes:
        version: version of the installed package.
        domain: PDDL text of the domain.
        grammar: text of the grammar; ``UNKNOWN GOAL`` stands in for the task sentence.
        contains: kind of receptacle -> kinds of objects it may hold.
        fit_for: trait ("Cleanable", "Heatable", "Coolable", "Toggleable", "Sliceable") -> kinds of objects.
        bowls: kinds of objects that can hold others.
        digest: sha256 of all of the above but the version.

    The tables are sets: ask them for membership only, since their order follows PYTHONHASHSEED.
    """

    version: str
    domain: str
    grammar: str
    contains: Mapping[str, frozenset[str]]
    fit_for: Mapping[str, frozenset[str]]
    bowls: frozenset[str]
    digest: str

    def can_contain(self, receptacle: str, thing: str) -> bool:
        return thing in self.contains.get(receptacle, frozenset())

    def is_fit(self, thing: str, trait: str) -> bool:
        return thing in self.fit_for[trait]


def _execute(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_alfworld_constants", file)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"cannot read {file}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def alfworld_package() -> Package:
    """Read the installed package, once per process.

    Raises:
        RuntimeError: ``alfworld`` is not installed, or is not laid out as expected.
    """
    found = importlib.util.find_spec("alfworld")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("alfworld is not installed: pip install 'rsipo[alfworld]'")
    root, version = Path(found.submodule_search_locations[0]), importlib.metadata.version("alfworld")
    try:
        domain = (root / "data" / "alfred.pddl").read_text(encoding="utf-8")
        grammar = (root / "data" / "alfred.twl2").read_text(encoding="utf-8")
        tables = _execute(root / "gen" / "constants.py")
        contains = {kind: frozenset(things) for kind, things in tables.VAL_RECEPTACLE_OBJECTS.items()}
        fit_for = {trait: frozenset(things) for trait, things in tables.VAL_ACTION_OBJECTS.items()}
        bowls = frozenset(tables.MOVABLE_RECEPTACLES)
    except (OSError, AttributeError) as error:
        raise RuntimeError(f"alfworld {version} is not laid out as 0.4.2 is: {error}") from error
    if grammar.count(GOAL_PLACEHOLDER) != 1:
        raise RuntimeError(f"the grammar of alfworld {version} does not have exactly one {GOAL_PLACEHOLDER!r}")
    ordered = [sorted((k, sorted(v)) for k, v in table.items()) for table in (contains, fit_for)]
    content = json.dumps([domain, grammar, *ordered, sorted(bowls)])
    digest = hashlib.sha256(content.encode()).hexdigest()
    return Package(version, domain, grammar, contains, fit_for, bowls, digest)
