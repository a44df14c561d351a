"""What may be loaded as a game. A game file is code: TextWorld evaluates the ``{...}`` expressions of its grammar.

A file is loaded when its SHA-256 is in a manifest the user trusts, or when a strict check shows that nothing but data
differs from ALFWorld's own files: a known domain, a known grammar around one plain task sentence, and a problem made of
plain PDDL characters. All 4,027 released games pass the strict check.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import lzma
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from agent_system.environments.base import BadTask

MAX_BYTES = 8 * 2**20  # the largest released game has 0.13 MB
REQUIRED_KEYS = ("pddl_domain", "grammar", "pddl_problem")
TASK_PLACEHOLDER = "UNKNOWN GOAL."

# Release 2.1.2 of the games carries an older domain and grammar than the alfworld package. A grammar is hashed with its
# task sentence replaced by TASK_PLACEHOLDER, which is how the package ships it.
_RELEASED_DOMAIN = "0af55e7f92d12b09d28515aa730e4d03fddd17228ef1fd7b18a3ee8ba49b27b9"
_RELEASED_GRAMMAR = "cce0702cd250cc6af6c3ea047a21f6c4c1c8d29a1739efefb5221ef4c3dcac57"

_TASK = re.compile(r'(?<="rhs": "Your task is to: )[^"\n]*(?=")')
_SENTENCE = re.compile(r"[A-Za-z0-9 ,.'-]{1,300}")
_FOREIGN_IN_PROBLEM = re.compile(r"[^A-Za-z0-9_\s()=?:;.,+-]", re.ASCII)


def sha256_text(text: str) -> str:
    """Hex SHA-256 of a text in UTF-8."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def split_task(grammar: str) -> tuple[str, str, str] | None:
    """The text before the task sentence, the sentence, the text after it; None when there is not exactly one plain one.

    Plain means letters, digits, spaces and ``,.'-``: characters that neither TextWorld's grammar nor JSON interprets.
    """
    found = list(_TASK.finditer(grammar))
    if len(found) != 1 or not _SENTENCE.fullmatch(found[0].group()):
        return None
    start, end = found[0].span()
    return grammar[:start], grammar[start:end], grammar[end:]


@lru_cache(maxsize=1)
def known_domains() -> frozenset[str]:
    """SHA-256 of every accepted PDDL domain: that of the released games and that of the installed alfworld."""
    return frozenset({_RELEASED_DOMAIN} | {sha256_text(text) for text in _package_text("alfred.pddl")})


@lru_cache(maxsize=1)
def known_grammars() -> frozenset[str]:
    """SHA-256 of every accepted grammar, taken with TASK_PLACEHOLDER as its task sentence."""
    return frozenset({_RELEASED_GRAMMAR} | {sha256_text(text) for text in _package_text("alfred.twl2")})


def _package_text(name: str) -> list[str]:
    """A data file of the installed alfworld, found without importing it: its import creates folders in the home."""
    spec = importlib.util.find_spec("alfworld")
    folders = spec.submodule_search_locations if spec else None
    paths = [Path(folder) / "data" / name for folder in folders or ()]
    return [path.read_text(encoding="utf-8") for path in paths if path.is_file()]


def load_manifest(path: str | Path) -> frozenset[str]:
    """The SHA-256 values of a manifest: JSON lines with a ``sha256`` field, plain or ``.xz``.

    Raises FileNotFoundError, or ValueError naming the bad line.
    """
    path = Path(path)
    raw = path.read_bytes()
    try:
        text = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode("utf-8")
    except (lzma.LZMAError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a manifest ({error})") from None
    hashes = set()
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            hashes.add(str(json.loads(line)["sha256"]))
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}, line {number}: expected a JSON object with a 'sha256' field") from None
    return frozenset(hashes)


def read_game(path: str | Path, *, sha256: str = "", trusted: Collection[str] = frozenset()) -> dict[str, Any]:
    """The checked content of a game file, read once so that what is checked is what is loaded.

    Args:
        path: the ``game.tw-pddl`` file.
        sha256: expected hex hash of the file; empty to skip the comparison.
        trusted: hashes from a manifest; such a file skips the strict check (not the check for missing keys).

    Raises BadTask naming the file and the reason when it is missing, unreadable, changed, malformed or unsafe.
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise BadTask(f"{path}: cannot be read ({error.strerror or error})") from error
    digest = hashlib.sha256(raw).hexdigest()
    if sha256 and digest != sha256:
        raise BadTask(f"{path}: changed since it was indexed (sha256 {digest[:12]}, expected {sha256[:12]})")
    try:
        if len(raw) > MAX_BYTES:
            raise ValueError(f"{len(raw)} bytes; no game is larger than {MAX_BYTES}")
        data = json.loads(raw)
        check_keys(data)
        if digest not in trusted:
            check_strictly(data)
    except (ValueError, RecursionError) as error:
        raise BadTask(f"{path}: {_reason(error)}") from error
    return data


def _reason(error: BaseException) -> str:
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return f"not valid JSON, perhaps truncated ({error})"
    return str(error) or type(error).__name__


def check_keys(data: Any) -> None:
    """Raises ValueError unless ``data`` has the shape of an ALFWorld game that is not marked unsolvable."""
    if not isinstance(data, Mapping):
        raise ValueError(f"expected a JSON object, found {type(data).__name__}")
    for key in REQUIRED_KEYS:
        if not isinstance(data.get(key), str):
            raise ValueError(f"the text field {key!r} is missing")
    if data.get("solvable", True) is not True:
        raise ValueError("the game is marked unsolvable")
    walkthrough = data.get("walkthrough") or []
    if not isinstance(walkthrough, list) or not all(isinstance(step, str) for step in walkthrough):
        raise ValueError("'walkthrough' is not a list of texts")


def check_strictly(data: Mapping[str, Any]) -> None:
    """Raises ValueError with the reason unless the game differs from ALFWorld's own files in data only."""
    if sha256_text(data["pddl_domain"]) not in known_domains():
        raise ValueError("its PDDL domain is neither that of the released games nor that of the installed alfworld")
    parts = split_task(data["grammar"])
    if parts is None:
        raise ValueError("its grammar has no single plain task sentence, and a grammar can run code: refused")
    before, _, after = parts
    if sha256_text(before + TASK_PLACEHOLDER + after) not in known_grammars():
        raise ValueError("its grammar is not ALFWorld's, and a grammar can run code: refused (list it in a manifest)")
    foreign = _FOREIGN_IN_PROBLEM.search(data["pddl_problem"])
    if foreign:
        raise ValueError(f"its PDDL problem contains {foreign.group()!r}, which no ALFWorld problem does")
