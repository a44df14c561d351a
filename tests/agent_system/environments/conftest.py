"""Games for the tests: a few generated ones, and the real mini set where it lies beside the project."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_system.environments.alfworld.generator import generate_games
from agent_system.environments.alfworld.index import scan
from agent_system.environments.base import Task


@pytest.fixture(scope="session")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with six small generated games, one of each task type."""
    root = tmp_path_factory.mktemp("generated")
    generate_games(root, split="train", count=6, size="micro", seed=0)
    return root


@pytest.fixture(scope="session")
def tasks(games: Path) -> list[Task]:
    return scan(games, "train")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of ALFWorld's released games."""
    for folder in Path(__file__).resolve().parents:
        if (found := folder.parent / "shared" / "data" / "alfworld").is_dir():
            return found
    pytest.skip("the released ALFWorld games are not beside the project (shared/data/alfworld)")


@pytest.fixture(scope="session")
def real_games(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with 60 released games: train 6, valid_seen 2 and valid_unseen 2 of each task type."""
    root = tmp_path_factory.mktemp("real")
    with tarfile.open(real_data / "alfworld_text_mini.tar.xz") as archive:
        # The argument came with Python 3.11.4; the archive is our own.
        archive.extractall(root, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return root


@pytest.fixture(scope="session")
def real_tasks(real_games: Path) -> list[Task]:
    return [task for split in ("train", "valid_seen", "valid_unseen") for task in scan(real_games, split)]


@pytest.fixture(scope="session")
def walkthrough() -> Callable[[Task], list[str]]:
    """The actions that win a task."""
    return lambda task: json.loads(Path(task.location).read_text())["walkthrough"]
