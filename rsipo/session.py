"""One training run from start to table: build the parts, train, and take everything down again."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from agent_system.environments.base import EnvironmentSpec, Task
from agent_system.files import write_atomically
from rsipo.configuration import save_resolved
from rsipo.failures import as_user_errors, keep_stacks
from rsipo.health import HealthMonitor
from rsipo.preflight import load_tasks
from rsipo.problems import RunStopped, UserError
from rsipo.ray_cluster import prepare_environment, ray_cluster, signals
from rsipo.rollouts import describe_heartbeat, open_pool
from rsipo.run_console import RunConsole, library_logs
from rsipo.run_files import MetricsLog, RunFiles, locked, read_metrics
from rsipo.run_settings import RunSettings
from rsipo.specs import make_spec
from rsipo.summary import loss_lines, print_step, print_summary
from rsipo.tasks import TaskSampler, by_type, panel

if TYPE_CHECKING:
    from agent_system.rollout.pool import Heartbeat
    from rsipo.saved_rollouts import Play, RolloutArchive
    from rsipo.trainer import RSIPOTrainer
    from verl_ext.checkpoint import CheckpointStore
    from verl_ext.cluster import PolicyCluster
    from verl_ext.phases import PhaseClock
    from verl_ext.stopping import Stopped, StopSwitch
    from verl_ext.trainer import PPOSettings

_REMEDY = "RSIPO_RESUME_MODE=auto resumes"


def run_training(config: DictConfig, settings: RunSettings) -> int:
    """Train as configured; returns the exit status. Failures that a user can act on are UserErrors."""
    prepare_environment(str(config.trainer.device))
    files = RunFiles(Path(settings.run.directory))
    files.main.mkdir(parents=True, exist_ok=True)
    with library_logs(files.log):
        return _run(config, settings, files)


def _run(config: DictConfig, settings: RunSettings, files: RunFiles) -> int:
    with locked(files.root, "choose another run.name"):
        console = RunConsole(files.log)
        try:
            with as_user_errors(files.root, files.worker_logs, _REMEDY):
                _train(config, settings, files, console)
            print_summary(console, read_metrics(files.metrics), files)
        except UserError as error:
            logging.getLogger(__name__).error(error)
            raise
        finally:
            console.close()
    return 0


def _train(config: DictConfig, settings: RunSettings, files: RunFiles, console: RunConsole) -> None:
    """Train to the end; raises RunStopped when something stopped it before, and what the parts raise."""
    from verl_ext.stopping import Stopped, StopSwitch

    stop, stopped = StopSwitch(), None
    with signals(stop.on_signal):
        try:
            stopped = _train_until_stopped(config, settings, files, console, stop)
        except KeyboardInterrupt:
            if stop.reason is None:
                raise
            stop.finish()
            what = "ended at once by a second signal" if stop.insisted else f"stopped by {stop.reason} while starting"
            raise RunStopped(f"{what}; nothing that was saved is lost, {_REMEDY}", stop.exit_status) from None
    if isinstance(stopped, Stopped):
        raise RunStopped(f"{stopped}; {_REMEDY}", stop.exit_status)


def _train_until_stopped(
    config: DictConfig, settings: RunSettings, files: RunFiles, console: RunConsole, stop: StopSwitch
) -> Stopped | None:
    from verl_ext.phases import PhaseClock
    from verl_ext.stopping import Stopped

    clock = PhaseClock(
        lambda line: console.print(line, style="dim"),
        settings.logging.heartbeat,
        settings.workers.phase_deadline,
        on_timeout=lambda phase: keep_stacks(files.worker_logs, phase),
    )
    console.print(f"Run folder: {files.root}")
    _refuse_a_finished_run(settings, files)
    with ExitStack() as stack:
        with clock.phase("start Ray"):
            stack.enter_context(ray_cluster(config, files.worker_logs, stop.on_signal))
        trainer = stack.enter_context(open_trainer(config, settings, files, console, clock, stop))
        started = sum(seconds for name, seconds in clock.take().items() if name.startswith("seconds/"))
        console.print(f"Started in {started:.0f} s.")
        try:
            trainer.fit()
        except Stopped as stopped:
            return stopped
    return None


def _refuse_a_finished_run(settings: RunSettings, files: RunFiles) -> None:
    """Before anything is started: is there a step, or an evaluation that was missed, to go on with?

    Raises:
        UserError: the run is complete.
    """
    from verl_ext.checkpoint import CheckpointStore
    from verl_ext.trainer import nothing_to_train

    latest = _to_resume(settings, CheckpointStore(files.checkpoints, None))
    if latest is None or latest[0] < settings.training.steps:
        return
    evaluated = {row["step"] for row in read_metrics(files.metrics) if _has_evaluation(row)}
    if latest[0] in evaluated or not settings.evaluation.at_end:
        raise UserError(nothing_to_train(latest[0], settings.training.steps))


def _to_resume(settings: RunSettings, checkpoints: CheckpointStore) -> tuple[int, Path] | None:
    """The (step, folder) to go on from, None for a new run."""
    return checkpoints.latest() if settings.run.resume == "auto" else None


def _has_evaluation(row: Mapping[str, Any]) -> bool:
    return any(name.startswith("evaluation/") for name in row)


@contextmanager
def open_trainer(
    config: DictConfig,
    settings: RunSettings,
    files: RunFiles,
    console: RunConsole,
    clock: PhaseClock,
    stop: StopSwitch | None = None,
) -> Iterator[RSIPOTrainer]:
    """A trainer with its workers, resumed where the settings say so. Ray must be running; the workers end with the block."""
    from rsipo.audit.records import AuditWriter
    from rsipo.trainer import RSIPOTrainer, loss_terms
    from verl_ext.checkpoint import CheckpointStore
    from verl_ext.cluster import PolicyCluster
    from verl_ext.stopping import StopSwitch
    from verl_ext.tracking import Trackers

    stop = stop or StopSwitch()
    spec = make_spec(settings.env)
    training, held_out, _ = load_tasks(settings)
    held_out = panel(held_out, settings.evaluation.tasks)
    console.print(f"{len(training)} training tasks {by_type(training)}, {len(held_out)} held-out tasks")
    checkpoints = CheckpointStore(files.checkpoints, settings.training.keep_checkpoints)
    latest = _to_resume(settings, checkpoints)
    resumed_step = latest[0] if latest else None

    with ExitStack() as stack:
        terms, skill_loss = loss_terms(settings.method)
        cluster = PolicyCluster(
            config,
            token_terms=terms,
            auxiliary_loss=skill_loss,
            sync_deadline_s=settings.workers.sync_deadline,
            routing_slack=settings.workers.routing_slack,
        )
        stack.callback(cluster.shutdown)
        with clock.phase("start policy"), console.quiet():
            cluster.start()
        play, counters = _player(stack, settings, spec, cluster, clock, console, files)
        save_resolved(config, files.config)
        _write_panel(files.main / "panel.json", held_out)
        log = MetricsLog(files.metrics, resumed_step)
        health = HealthMonitor(settings.health, read_metrics(files.metrics))
        trackers = Trackers(settings.logging.trackers, settings.logging.project, settings.run.name, config)
        stack.callback(trackers.close)

        def record(step: int, metrics: dict[str, Any]) -> None:
            alarms = health.observe(metrics)
            if log.last.get("step") != step:  # not an evaluation that was made up for
                metrics |= {f"workers/{name}": counters[name] for name in ("workers_replaced", "tasks_resubmitted")}
                metrics |= {"health/alarms": len(alarms)} | {f"health/{alarm.name}": 1 for alarm in alarms}
            log.write(step, metrics)
            trackers.log(step, metrics)
            print_step(console, step, settings.training.steps, metrics)
            for alarm in alarms:
                console.print(f"health alarm: {alarm.message}", style="bold yellow")
            if alarms and settings.health.action == "stop":
                stop.request(f"a health alarm ({alarms[0].message})")
            console.bar("steps", step, settings.training.steps)

        audit = AuditWriter(files.audit, settings.check) if settings.method.needs_check else None
        if audit is not None:
            audit.resume_from(resumed_step or 0)
        trainer = RSIPOTrainer(
            cluster,
            _loop_settings(settings),
            algorithm=settings.algorithm,
            spec=spec,
            sampler=TaskSampler(training, settings.training.tasks_per_step, settings.run.seed),
            play=play,
            audit=audit,
            max_lost=settings.workers.max_lost,
            evaluate=lambda step: _evaluate(play, held_out, settings, step),
            log=record,
            checkpoints=checkpoints,
            clock=clock,
            stop=stop,
        )
        if latest:
            with clock.phase("resume"):
                trainer.resume(evaluated=_has_evaluation(log.last))
            console.print(f"Resumed after step {trainer.step}.")
        yield trainer


def _loop_settings(settings: RunSettings) -> PPOSettings:
    from verl_ext.trainer import PPOSettings

    training, evaluation = settings.training, settings.evaluation
    return PPOSettings(
        total_steps=training.steps,
        mini_batch_size=training.ppo_mini_batch_size,
        temperature=training.temperature,
        use_reference=training.kl_coefficient > 0,
        seed=settings.run.seed,
        sync_deadline_s=settings.workers.sync_deadline,
        checkpoint_every=training.checkpoint_every,
        evaluate_every=evaluation.every,
        evaluate_at_start=evaluation.at_start,
        evaluate_at_end=evaluation.at_end,
        advantage=settings.advantage.model_dump(),
    )


def _player(
    stack: ExitStack,
    settings: RunSettings,
    spec: EnvironmentSpec,
    cluster: PolicyCluster,
    clock: Any,
    console: RunConsole,
    files: RunFiles,
) -> tuple[Play, Counter[str]]:
    """The rollout workers, behind one function (program, tasks, step) -> results in the tasks' order; and their counters.

    In their place, where the settings say so, the saved rollouts of another run.
    """
    debug, workers = settings.debug, settings.workers
    if debug.load_rollouts is not None:
        counters: Counter[str] = Counter()
        return _archive(Path(debug.load_rollouts), settings, console).play, counters
    pool = open_pool(settings, spec, cluster.client(), run_seed=settings.run.seed)
    stack.callback(pool.close)

    def beat(state: Heartbeat) -> None:
        clock.detail = describe_heartbeat(state)

    def play(program: Any, tasks: Sequence[Task], step: int) -> list[Any]:
        results: dict[int, Any] = {}
        playing = pool.submit(
            program,
            tasks,
            step,
            deadline_s=workers.phase_deadline,
            heartbeat_s=settings.logging.heartbeat / 2,
            on_heartbeat=beat,
        )
        with closing(playing):  # an interruption cancels what is running
            for index, result in playing:
                results[index] = result
                clock.detail = f"{len(results)}/{len(tasks)} tasks"
                console.bar("tasks", len(results), len(tasks))
        ordered = [results[index] for index in range(len(tasks))]
        for line in loss_lines(ordered):
            console.print(line, style="yellow")
        return ordered

    if debug.save_rollouts:
        return _archive(files.rollouts, settings, console).saving(play), pool.counters
    return play, pool.counters


def _archive(folder: Path, settings: RunSettings, console: RunConsole) -> RolloutArchive:
    from rsipo.saved_rollouts import RolloutArchive, rollout_identity

    identity = rollout_identity(settings, lambda done, total: console.bar("hashing the policy", done, total))
    return RolloutArchive(folder, identity)


def _evaluate(play: Play, tasks: Sequence[Task], settings: RunSettings, step: int) -> dict[str, Any]:
    from agent_system.rollout.program import PanelEpisode
    from rsipo.record_keeping import success_metrics

    program = PanelEpisode(settings.evaluation.temperature, settings.evaluation.repeats)
    results = play(program, tasks, step)
    played = [(task.task_type, episode) for task, episodes in zip(tasks, results, strict=True) for episode in episodes]
    return success_metrics("evaluation", played)


def _write_panel(path: Path, tasks: Sequence[Task]) -> None:
    """Which held-out tasks are evaluated, by id and hash, beside the numbers they give."""
    write_atomically(path, json.dumps([{"task_id": task.task_id, "sha256": task.sha256} for task in tasks], indent=1))
