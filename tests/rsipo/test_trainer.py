"""The trainer on real parts: Ray, veRL's workers, the CPU rollout server, generated games, the shipped policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from agent_system.environments.alfworld.generator import generate_games
from rsipo.audit.verify import verify_run
from rsipo.configuration import compose_run
from rsipo.models import EMBEDDED_POLICY
from rsipo.ray_cluster import ray_cluster
from rsipo.run_console import RunConsole
from rsipo.run_files import RunFiles, read_metrics
from rsipo.run_settings import RunSettings
from rsipo.session import open_trainer

pytestmark = pytest.mark.ray

State = dict[str, torch.Tensor]

SMALL = [
    "recipe=embedded",
    f"policy.path={EMBEDDED_POLICY}",
    "env.max_turns=6",
    "training.tasks_per_step=4",
    "training.ppo_mini_batch_size=48",
    "training.checkpoint_every=1",
    "check.num_rollouts=4",
    "check.num_replays=2",
    "evaluation.at_start=false",
    "evaluation.at_end=false",
    "evaluation.every=0",
    "workers.slots_per_host=16",
]


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("games")
    generate_games(root, split="train", count=12, size="micro", seed=0)
    generate_games(root, split="valid_unseen", count=6, size="micro", seed=0)
    return root


@pytest.fixture(scope="module")
def train(games: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable]:
    """``train(name, *overrides)`` -> (final weights, run files). Runs of one name share a folder; one Ray for all."""
    from verl_ext.phases import PhaseClock

    work = tmp_path_factory.mktemp("work")

    def run(name: str, *overrides: str) -> tuple[State, RunFiles]:
        config = compose_run([*SMALL, f"run.work_dir={work}", f"run.name={name}", f"env.data_root={games}", *overrides])
        settings = RunSettings.from_config(config)
        files = RunFiles(Path(settings.run.directory))
        console = RunConsole(files.log)
        with open_trainer(config, settings, files, console, PhaseClock(console.print, 60.0)) as trainer:
            trainer.fit()
            state = {key: value.clone() for key, value in trainer.cluster.export_state().items()}
        console.close()
        return state, files

    with ray_cluster(compose_run([*SMALL, "run.name=cluster"]), work / "worker-logs"):
        yield run


def assert_equal(first: State, second: State) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), f"{name} differs by {(value - second[name]).abs().max()}"


@pytest.fixture(scope="module")
def two_steps(train: Callable) -> tuple[State, RunFiles]:
    return train("whole", "training.steps=2")


def test_a_step_trains_writes_an_audit_that_holds_and_logs_what_happened(two_steps: tuple[State, RunFiles]) -> None:
    state, files = two_steps
    report = verify_run(files.root)
    assert report.ok, str(report)
    rows = read_metrics(files.metrics)
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["student/episodes"] == 16
        assert row["funnel/tasks"] == 4
        assert row["update/applied"] is True
        assert row["first_mini_batch/ppo/ratio_mean"] == pytest.approx(1.0, abs=1e-4)
        assert row["rollout/log_prob_gap_max"] < 1e-4
        assert row["skill/valid"] >= 0.5
        assert 0 <= row["check/trust_p0"] <= row["check/trust_p100"] <= 2
    assert all(torch.isfinite(value).all() for value in state.values())


def test_a_resumed_run_equals_the_uninterrupted_one(train: Callable, two_steps: tuple[State, RunFiles]) -> None:
    # The learning rate is constant, so a run of one step is the first half of a run of two.
    whole, files = two_steps
    train("resumed", "training.steps=1")
    resumed, resumed_files = train("resumed", "training.steps=2", "run.resume=auto")
    assert_equal(whole, resumed)
    drop = ("seconds/", "share/", "memory/", "rollout/")
    for mine, theirs in zip(read_metrics(files.metrics), read_metrics(resumed_files.metrics), strict=True):
        for name in mine:
            if not name.startswith(drop):
                assert theirs[name] == mine[name], name
    assert verify_run(resumed_files.root).ok
    audits = [sorted(path.read_text() for path in f.audit.glob("step-*.jsonl")) for f in (files, resumed_files)]
    assert audits[0] == audits[1]


def test_servers_that_share_the_devices_wake_again_after_a_checkpoint(train: Callable) -> None:
    """As on GPUs, where training and serving take turns: the CPU server refuses requests while it sleeps."""
    _, files = train("sharing", "training.steps=2", "method=grpo", "actor_rollout_ref.rollout.free_cache_engine=true")
    assert [row["step"] for row in read_metrics(files.metrics)] == [1, 2]
    assert all(row["student/lost"] == 0 for row in read_metrics(files.metrics))


def test_trust_one_and_no_skill_reward_is_seed_bit_for_bit(train: Callable) -> None:
    calibrated, _ = train("omega-one", "training.steps=1", "method=rsipo_no_evolution", "check.kappa=0")
    seed, _ = train("seed", "training.steps=1", "method=seed")
    assert_equal(calibrated, seed)


def test_seed_without_distillation_is_grpo_bit_for_bit(train: Callable) -> None:
    seed, _ = train("seed-zero", "training.steps=1", "method=seed", "method.opsd_coefficient=0")
    grpo, files = train("grpo", "training.steps=1", "method=grpo")
    assert_equal(seed, grpo)
    assert not files.audit.exists()


def test_resuming_a_finished_run_says_so(train: Callable, two_steps: tuple[State, RunFiles]) -> None:
    from verl_ext.trainer import TrainingFault

    with pytest.raises(TrainingFault, match="nothing to train: step 2 of 2"):
        train("whole", "training.steps=2", "run.resume=auto")
