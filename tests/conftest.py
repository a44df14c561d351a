"""What Ray, veRL, torch and the tokenizers read from the environment, set before anything imports them; and our options."""

import os

import pytest

from rsipo.ray_cluster import prepare_environment

os.environ.setdefault("OMP_NUM_THREADS", "1")
prepare_environment("cpu")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-faults", action="store_true", help="tests/faults: also those that are left out by default")
    parser.addoption("--fault-seed", type=int, default=0, help="tests/faults: decides when exactly a fault happens")
