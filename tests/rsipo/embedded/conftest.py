"""A few generated games and their demonstrations, made once for all tests of the embedded policy."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("textworld", reason="needs the extra `alfworld`")
pytest.importorskip("torch", reason="needs the extra `cpu`")

from agent_system.environments.alfworld.generator import generate_games
from agent_system.environments.alfworld.spec import AlfworldSpec
from rsipo.embedded.demonstrations import Behaviour, Demonstration, demonstrate
from rsipo.embedded.warm_start import tiny_spec


@pytest.fixture(scope="session")
def spec(tmp_path_factory: pytest.TempPathFactory) -> AlfworldSpec:
    """18 unseen ``tiny`` games, three of each task type, and as many for training."""
    root: Path = tmp_path_factory.mktemp("games")
    for split in ("train", "valid_unseen"):
        generate_games(root, split=split, count=18, size="tiny", seed=77)
    return tiny_spec(root)


@pytest.fixture(scope="session")
def demonstrations(spec: AlfworldSpec) -> list[Demonstration]:
    return list(demonstrate(spec.make(), spec, spec.tasks("train"), behaviour=Behaviour(repetitions=2), seed=5))
