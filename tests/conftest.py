"""What Ray, veRL, torch and the tokenizers read from the environment, set before anything imports them; and our options."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path

import pytest

from rsipo.ray_cluster import prepare_environment

os.environ.setdefault("OMP_NUM_THREADS", "1")
prepare_environment("cpu")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-faults", action="store_true", help="tests/faults: also those that are left out by default")
    parser.addoption("--fault-seed", type=int, default=0, help="tests/faults: decides when exactly a fault happens")


@pytest.fixture(scope="session")
def small_ray() -> Callable[..., AbstractContextManager[None]]:
    """``with small_ray(num_gpus):`` a Ray for the block, of eight logical processors and so many logical GPUs."""
    return _small_ray


@contextmanager
def _small_ray(num_gpus: int = 0) -> Iterator[None]:
    import ray

    # A short path: Ray's sockets lie in it.
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=8,
            num_gpus=num_gpus,
            include_dashboard=False,
            object_store_memory=200 * 1024**2,
            _temp_dir=folder,
            logging_level="error",
            log_to_driver=False,
        )
        try:
            yield
        finally:
            ray.shutdown()


# Two processes share the tests by files (--dist loadfile), because those share fixtures.
# What starts Ray comes first, as it takes longest.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not _starts_ray(item.path))


@cache
def _starts_ray(path: Path) -> bool:
    return "pytest.mark.ray" in path.read_text(encoding="utf-8")
