"""What Ray, veRL, torch and the tokenizers read from the environment, set before anything imports them; and our options."""

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rsipo.ray_cluster import prepare_environment

os.environ.setdefault("OMP_NUM_THREADS", "1")
prepare_environment("cpu")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-faults", action="store_true", help="tests/faults: also those that are left out by default")
    parser.addoption("--fault-seed", type=int, default=0, help="tests/faults: decides when exactly a fault happens")


# How tests are spread over several processes (-n 2): one process has all files that start a Ray cluster, so that two clusters
# never share the cores, and has them first, as they take longest. The others go by files, whose tests share fixtures.


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class OneProcessForRay(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return "ray" if _starts_ray(config.rootpath / file) else file

    return OneProcessForRay(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not _starts_ray(item.path))


@cache
def _starts_ray(path: Path) -> bool:
    return "pytest.mark.ray" in path.read_text(encoding="utf-8")
