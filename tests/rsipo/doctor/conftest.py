"""Generated games, a model folder that a test may damage, and an environment of folders of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agent_system.environments.alfworld.generator import generate_games
from rsipo.models import EMBEDDED_POLICY


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("games")
    generate_games(root, split="train", count=12, size="micro", seed=0)
    generate_games(root, split="valid_unseen", count=6, size="micro", seed=0)
    return root


@pytest.fixture
def games(generated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(generated, tmp_path / "games"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The shipped policy under ``MODELS_ROOT``."""
    return Path(shutil.copytree(EMBEDDED_POLICY, tmp_path / "models" / "mine"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RSIPO_WORK", str(tmp_path / "work"))
    monkeypatch.setenv("MODELS_ROOT", str(tmp_path / "models"))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "games"))
    monkeypatch.setenv("SEARCH_DATA", str(tmp_path / "search"))
    monkeypatch.delenv("RSIPO_RESUME_MODE", raising=False)
    return tmp_path
