"""What Ray, veRL, torch and the tokenizers read from the environment, set before anything imports them; and our options."""

import os

import pytest

from rsipo.ray_cluster import prepare_environment

os.environ.setdefault("OMP_NUM_THREADS", "1")
prepare_environment("cpu")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-faults", action="store_true", help="tests/faults: also those that are left out by default")
    parser.addoption("--fault-seed", type=int, default=0, help="tests/faults: decides when exactly a fault happens")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """How tests are spread when there are several processes (-n 2 --dist loadgroup).

    One process has all that start a Ray cluster, so that two clusters never share the cores, and has them first, as they take
    longest. The others go by files, whose tests share fixtures.
    """
    if not config.pluginmanager.hasplugin("xdist"):  # the vLLM lane's environment lacks it
        return
    items.sort(key=lambda item: item.get_closest_marker("ray") is None)
    for item in items:
        alone = item.get_closest_marker("ray") is not None
        item.add_marker(pytest.mark.xdist_group("ray" if alone else str(item.path)))
