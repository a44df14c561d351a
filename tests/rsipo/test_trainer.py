"""The trainer on real parts: Ray, veRL's workers, the CPU rollout server, generated games, the shipped policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig

from agent_system.environments.alfworld.generator import generate_games
from rsipo.audit.verify import verify_run
from rsipo.configuration import compose_run
from rsipo.models import EMBEDDED_POLICY
from rsipo.problems import UserError
from rsipo.ray_cluster import ray_cluster
from rsipo.report.data import load_run
from rsipo.run_console import RunConsole
from rsipo.run_files import RunFiles, read_metrics
from rsipo.run_settings import RunSettings
from rsipo.session import open_trainer, run_training

pytestmark = pytest.mark.ray

State = dict[str, torch.Tensor]
Configure = Callable[..., DictConfig]

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
def configure(games: Path, tmp_path_factory: pytest.TempPathFactory) -> Configure:
    """``configure(name, *overrides)`` -> the configuration of a small run. Runs of one name share a folder."""
    work = tmp_path_factory.mktemp("work")
    return lambda name, *overrides: compose_run(
        [*SMALL, f"run.work_dir={work}", f"run.name={name}", f"env.data_root={games}", *overrides]
    )


@pytest.fixture(scope="module")
def train(configure: Configure) -> Iterator[Callable]:
    """``train(name, *overrides)`` -> (final weights, run files). One Ray for all."""
    from verl_ext.phases import PhaseClock

    def run(name: str, *overrides: str) -> tuple[State, RunFiles]:
        config = configure(name, *overrides)
        settings = RunSettings.from_config(config)
        files = RunFiles(Path(settings.run.directory))
        console = RunConsole(files.log)
        with open_trainer(config, settings, files, console, PhaseClock(console.print, 60.0)) as trainer:
            trainer.fit()
            state = {key: value.clone() for key, value in trainer.cluster.export_state().items()}
        console.close()
        return state, files

    config = configure("cluster")
    with ray_cluster(config, RunFiles(Path(config.run.directory)).worker_logs):
        yield run


def assert_equal(first: State, second: State) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), f"{name} differs by {(value - second[name]).abs().max()}"


@pytest.fixture(scope="module")
def two_steps(train: Callable) -> tuple[State, RunFiles]:
    return train("whole", "training.steps=2", "debug.save_rollouts=true")


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


def test_a_run_that_an_alarm_stopped_equals_the_uninterrupted_one_when_resumed(
    train: Callable, two_steps: tuple[State, RunFiles]
) -> None:
    from verl_ext.stopping import Stopped

    whole, files = two_steps
    alarmed = ("training.steps=2", "training.checkpoint_every=0", "health.log_prob_gap=1e-30")
    with pytest.raises(
        Stopped, match=r"stopped by a health alarm \(log-prob.*\) after step 1, saved in .*global_step_1"
    ):
        train("resumed", *alarmed, "health.action=stop")
    resumed, resumed_files = train("resumed", *alarmed, "run.resume=auto")
    assert_equal(whole, resumed)
    drop = ("seconds/", "share/", "memory/", "rollout/", "health/")
    for mine, theirs in zip(read_metrics(files.metrics), read_metrics(resumed_files.metrics), strict=True):
        assert (mine["health/alarms"], theirs["health/log_prob_gap"]) == (0, 1)
        for name in mine:
            if not name.startswith(drop):
                assert theirs[name] == mine[name], name
    assert verify_run(resumed_files.root).ok
    for pattern in ("step-*.jsonl", "transcripts-*.jsonl.gz"):
        audits = [[path.read_bytes() for path in sorted(f.audit.glob(pattern))] for f in (files, resumed_files)]
        assert len(audits[0]) == 2
        assert audits[0] == audits[1]


def test_training_on_the_saved_rollouts_gives_the_same_policy(
    train: Callable, two_steps: tuple[State, RunFiles]
) -> None:
    whole, files = two_steps
    again, loaded = train("loaded", "training.steps=2", f"debug.load_rollouts={files.rollouts}")
    assert_equal(whole, again)
    drop = ("seconds/", "share/", "memory/", "workers/")
    for mine, theirs in zip(read_metrics(files.metrics), read_metrics(loaded.metrics), strict=True):
        assert {k: v for k, v in mine.items() if not k.startswith(drop)} == {
            k: v for k, v in theirs.items() if not k.startswith(drop)
        }
    audits = [[path.read_bytes() for path in sorted(f.audit.glob("step-*.jsonl"))] for f in (files, loaded)]
    assert audits[0] == audits[1]


def test_every_evidence_trajectory_is_recorded_turn_by_turn(two_steps: tuple[State, RunFiles]) -> None:
    run = load_run(two_steps[1].root)
    told = [record for record in run.records if record.evidence_index is not None]
    assert len(run.transcripts) == len(told) > 0
    for record in told:
        transcript, evidence = run.transcripts[record.step, record.task_id], record.rollouts[record.evidence_index]
        assert (transcript.index, transcript.success) == (evidence.index, evidence.success)
        assert len(transcript.turns) == evidence.turns
        assert sum(not turn.valid for turn in transcript.turns) == evidence.invalid_actions
        assert transcript.instruction
        assert all(turn.observation and turn.action for turn in transcript.turns)


def test_a_deadline_ends_a_wait_inside_ray(train: Callable) -> None:
    import ray

    from verl_ext.phases import PhaseClock, PhaseTimeout

    told: list[str] = []
    stuck = ray.remote(lambda: time.sleep(600)).remote()
    clock = PhaseClock(lambda line: None, 60.0, 1.0, on_timeout=told.append)
    with pytest.raises(PhaseTimeout, match="phase 'update' did not end"), clock.phase("update"):
        ray.get(stuck)
    ray.cancel(stuck, force=True)
    assert told == ["update"]


def test_trust_one_and_no_skill_reward_is_seed_bit_for_bit(train: Callable) -> None:
    calibrated, _ = train("omega-one", "training.steps=1", "method=rsipo_no_evolution", "check.kappa=0")
    seed, _ = train("seed", "training.steps=1", "method=seed")
    assert_equal(calibrated, seed)


def test_seed_without_distillation_is_grpo_bit_for_bit_whether_or_not_servers_sleep(train: Callable) -> None:
    """As on GPUs, one run's servers take turns with the training, also around its checkpoints: a CPU server that sleeps
    refuses requests."""
    seed, _ = train("seed-zero", "training.steps=2", "method=seed", "method.opsd_coefficient=0")
    grpo, files = train("grpo", "training.steps=2", "method=grpo", "actor_rollout_ref.rollout.free_cache_engine=true")
    assert_equal(seed, grpo)
    assert not files.audit.exists()
    assert [row["step"] for row in read_metrics(files.metrics)] == [1, 2]
    assert all(row["student/lost"] == 0 for row in read_metrics(files.metrics))


def test_resuming_a_finished_run_says_so_before_anything_starts(
    configure: Configure, two_steps: tuple[State, RunFiles]
) -> None:
    config = configure("whole", "training.steps=2", "run.resume=auto")
    written = {path: path.stat().st_mtime_ns for path in two_steps[1].checkpoints.rglob("*")}
    with pytest.raises(UserError, match="nothing to train: step 2 of 2"):
        run_training(config, RunSettings.from_config(config))
    assert {path: path.stat().st_mtime_ns for path in two_steps[1].checkpoints.rglob("*")} == written
