"""The trainer on real parts: Ray, veRL's workers, the CPU rollout server, generated games, the shipped policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from agent_system.environments.alfworld.generator import generate_games
from rsipo.audit.verify import verify_run
from rsipo.configuration import compose_run
from rsipo.models import EMBEDDED_POLICY
from rsipo.ray_cluster import ray_cluster
from rsipo.report.data import load_run
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
    for pattern in ("step-*.jsonl", "transcripts-*.jsonl.gz"):
        audits = [[path.read_bytes() for path in sorted(f.audit.glob(pattern))] for f in (files, resumed_files)]
        assert len(audits[0]) == 2
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


def test_an_alarm_stops_with_a_checkpoint_and_the_resumed_run_equals(
    train: Callable, two_steps: tuple[State, RunFiles]
) -> None:
    from verl_ext.stopping import Stopped

    whole, files = two_steps
    alarmed = ("training.steps=2", "training.checkpoint_every=0", "health.log_prob_gap=1e-30")
    with pytest.raises(
        Stopped, match=r"stopped by a health alarm \(log-prob.*\) after step 1, saved in .*global_step_1"
    ):
        train("alarmed", *alarmed, "health.action=stop")
    resumed, resumed_files = train("alarmed", *alarmed, "run.resume=auto")
    assert_equal(whole, resumed)
    assert [row["health/log_prob_gap"] for row in read_metrics(resumed_files.metrics)] == [1, 1]
    assert [row["health/alarms"] for row in read_metrics(files.metrics)] == [0, 0]


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
