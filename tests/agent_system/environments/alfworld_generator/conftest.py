from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _alfworld_is_installed() -> None:
    if importlib.util.find_spec("alfworld") is None:
        pytest.skip("alfworld is not installed: its domain and grammar are part of every game")


@pytest.fixture(scope="session")
def tree_hash() -> Callable[[Path], str]:
    """sha256 over the names and bytes of all files of a folder."""

    def hash_tree(root: Path) -> str:
        digest = hashlib.sha256()
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
        return digest.hexdigest()

    return hash_tree
