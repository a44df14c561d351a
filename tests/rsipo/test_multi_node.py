"""Two Ray nodes (on one machine) that were there before the run: the run joins, trains across both, and leaves."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from agent_system.environments.alfworld.generator import generate_games
from rsipo.audit.verify import verify_run
from rsipo.configuration import compose_run
from rsipo.models import EMBEDDED_POLICY
from rsipo.problems import UserError
from rsipo.ray_cluster import prepare_environment, ray_cluster
from rsipo.run_console import RunConsole
from rsipo.run_files import RunFiles, read_metrics
from rsipo.run_settings import RunSettings
from rsipo.session import open_trainer

pytestmark = pytest.mark.ray

SMALL = [
    "recipe=embedded",
    f"policy.path={EMBEDDED_POLICY}",
    "training.steps=1",
    "training.tasks_per_step=2",
    "check.num_rollouts=2",
    "check.num_replays=1",
    "env.max_turns=4",
    "evaluation.at_start=false",
    "evaluation.at_end=false",
    "evaluation.every=0",
    "workers.slots_per_host=4",
]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    prepare_environment("cpu")
    folder = tempfile.mkdtemp(prefix="two-", dir="/tmp")
    Path("/tmp/ray").mkdir(exist_ok=True)  # where Ray notes the newest cluster, wherever its own folder is
    node = {"num_cpus": 12, "num_gpus": 1, "object_store_memory": 200 * 2**20, "include_dashboard": False}
    started = Cluster(initialize_head=True, head_node_args={**node, "temp_dir": folder})
    started.add_node(**node)
    yield started
    started.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def test_a_run_joins_a_cluster_of_two_nodes_and_leaves_it_running(cluster: Cluster, tmp_path: Path) -> None:
    from verl_ext.phases import PhaseClock

    generate_games(tmp_path / "games", split="train", count=6, size="micro", seed=0)
    generate_games(tmp_path / "games", split="valid_unseen", count=6, size="micro", seed=0)
    config = compose_run(
        [
            *SMALL,
            f"run.work_dir={tmp_path}",
            "run.name=two",
            f"env.data_root={tmp_path / 'games'}",
            f"hardware.ray_address='{cluster.address}'",
            "trainer.nnodes=2",
            "trainer.n_gpus_per_node=1",
        ]
    )
    settings = RunSettings.from_config(config)
    files = RunFiles(Path(settings.run.directory))
    console = RunConsole(files.log)
    with (
        ray_cluster(config, files.worker_logs),
        open_trainer(config, settings, files, console, PhaseClock(console.print, 60.0)) as trainer,
    ):
        nodes = {
            ray.get(worker.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))
            for worker in trainer.cluster._workers.workers
        }
        trainer.fit()
    console.close()
    assert len(nodes) == 2
    assert [row["update/applied"] for row in read_metrics(files.metrics)] == [True]
    assert verify_run(files.root).ok
    ray.init(address=cluster.address, log_to_driver=False)
    alive = [node for node in ray.nodes() if node["Alive"]]
    ray.shutdown()
    assert len(alive) == 2


def test_no_cluster_at_the_address_is_one_line(tmp_path: Path) -> None:
    config = compose_run([*SMALL, "run.name=none", "hardware.ray_address='127.0.0.1:1'"])
    prepare_environment("cpu")
    with (
        pytest.raises(
            UserError, match=r"no Ray cluster at RSIPO_RAY_ADDRESS=127\.0\.0\.1:1: connection refused; start it"
        ),
        ray_cluster(config, tmp_path),
    ):
        pass
