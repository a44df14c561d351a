"""Generated and real games, the embedded policy's tokenizer, and a way to play programs in this process."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_system.environments.alfworld.generator import generate_games
from agent_system.environments.alfworld.spec import AlfworldSpec
from agent_system.environments.base import Task
from agent_system.environments.client import LocalEnvPool
from agent_system.rollout.episode import Deadlines
from agent_system.rollout.program import RolloutSettings
from agent_system.rollout.prompting import Prompter
from agent_system.rollout.worker import RolloutWorker
from rsipo.models import EMBEDDED_POLICY


@pytest.fixture(scope="session")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with six games of each validation split."""
    root = tmp_path_factory.mktemp("games")
    for split in ("valid_seen", "valid_unseen"):
        generate_games(root, split=split, count=6, size="micro", seed=0)
    return root


@pytest.fixture(scope="session")
def spec(games: Path) -> AlfworldSpec:
    return AlfworldSpec(str(games), max_turns=8, cache_dir=str(games / "cache"))


@pytest.fixture(scope="session")
def real_games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with 60 released games, two of each validation split and task type."""
    for folder in Path(__file__).resolve().parents:
        archive = folder.parent / "shared" / "data" / "alfworld" / "alfworld_text_mini.tar.xz"
        if archive.is_file():
            break
    else:
        pytest.skip("the released ALFWorld games are not beside the project (shared/data/alfworld)")
    root = tmp_path_factory.mktemp("real")
    with tarfile.open(archive) as files:
        files.extractall(root, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return root


@pytest.fixture(scope="session")
def play() -> Callable[..., list[Any]]:
    """``play(spec, program, tasks, slots=…, client=…)``: results in the tasks' order, from a worker in this process."""

    def run(
        spec: AlfworldSpec, program: Any, tasks: Sequence[Task], *, slots: int, client: Any = None, workers: int = 1
    ) -> list[Any]:
        prompter = Prompter(str(EMBEDDED_POLICY), max_prompt_tokens=1 << 20, max_teacher_prompt_tokens=1 << 20)
        settings = RolloutSettings(0, 1 << 10, Deadlines(turn_s=60, episode_s=300), concurrent_tasks=slots)

        async def everything() -> list[Any]:
            started = [
                RolloutWorker(spec, prompter, client, lambda: LocalEnvPool(spec, slots), settings)
                for _ in range(workers)
            ]
            work = [started[n % workers].run_task(program, task, 0) for n, task in enumerate(tasks)]
            results = await asyncio.gather(*work)
            for worker in started:
                await worker.close()
            return results

        return asyncio.run(everything())

    return run
