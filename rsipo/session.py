"""One training run from start to table: build the parts, train, and take everything down again."""

from __future__ import annotations

import fcntl
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from agent_system.environments.base import EnvironmentSpec, Task
from rsipo.configuration import save_resolved
from rsipo.preflight import load_tasks
from rsipo.problems import UserError
from rsipo.ray_cluster import prepare_environment, ray_cluster
from rsipo.run_console import RunConsole, library_logs
from rsipo.run_files import MetricsLog, RunFiles, read_metrics
from rsipo.run_settings import RunSettings
from rsipo.specs import make_spec
from rsipo.summary import loss_lines, print_step, print_summary
from rsipo.tasks import TaskSampler, by_type, panel

if TYPE_CHECKING:
    from rsipo.trainer import RSIPOTrainer
    from verl_ext.phases import PhaseClock
    from verl_ext.trainer import PPOSettings


def run_training(config: DictConfig, settings: RunSettings) -> int:
    """Train as configured; returns the exit status. Failures that a user can act on are UserErrors."""
    prepare_environment(str(config.trainer.device))
    files = RunFiles(Path(settings.run.directory))
    files.main.mkdir(parents=True, exist_ok=True)
    with library_logs(files.log):
        return _run(config, settings, files)


def _run(config: DictConfig, settings: RunSettings, files: RunFiles) -> int:
    from ray.exceptions import RayError

    from agent_system.rollout.pool import PhaseDeadline, WorkerLost
    from verl_ext.checkpoint import CheckpointError
    from verl_ext.cluster import ClusterError
    from verl_ext.phases import PhaseTimeout
    from verl_ext.trainer import TrainingFault

    with _locked(files):
        console = RunConsole(files.log)
        try:
            _train(config, settings, files, console)
        except RayError as error:
            reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
            raise UserError(
                f"a worker failed: {reason.strip()[:200]} (workers' logs: {files.worker_logs}; RSIPO_RESUME_MODE=auto resumes)"
            ) from error
        except (CheckpointError, ClusterError, PhaseTimeout, TrainingFault, PhaseDeadline, WorkerLost) as error:
            raise UserError(
                f"{error} (run folder: {files.root}, workers' logs: {files.worker_logs}; RSIPO_RESUME_MODE=auto resumes)"
            ) from error
        except OSError as error:
            raise UserError(
                f"the run folder {files.root} cannot be written: {error}; RSIPO_RESUME_MODE=auto resumes"
            ) from error
        else:
            print_summary(console, read_metrics(files.metrics), files)
        finally:
            console.close()
    return 0


def _train(config: DictConfig, settings: RunSettings, files: RunFiles, console: RunConsole) -> None:
    from verl_ext.phases import PhaseClock

    clock = PhaseClock(
        lambda line: console.print(line, style="dim"), settings.logging.heartbeat, settings.workers.phase_deadline
    )
    console.print(f"Run folder: {files.root}")
    with ExitStack() as stack:
        with clock.phase("start Ray"):
            stack.enter_context(ray_cluster(config, files.worker_logs))
        trainer = stack.enter_context(open_trainer(config, settings, files, console, clock))
        started = sum(seconds for name, seconds in clock.take().items() if name.startswith("seconds/"))
        console.print(f"Started in {started:.0f} s.")
        trainer.fit()


@contextmanager
def open_trainer(
    config: DictConfig, settings: RunSettings, files: RunFiles, console: RunConsole, clock: PhaseClock
) -> Iterator[RSIPOTrainer]:
    """A trainer with its workers, resumed where the settings say so. Ray must be running; the workers end with the block."""
    from rsipo.audit.records import AuditWriter
    from rsipo.trainer import RSIPOTrainer, loss_terms
    from verl_ext.checkpoint import CheckpointStore
    from verl_ext.cluster import PolicyCluster
    from verl_ext.tracking import Trackers

    spec = make_spec(settings.env)
    training, held_out, _ = load_tasks(settings)
    held_out = panel(held_out, settings.evaluation.tasks)
    console.print(f"{len(training)} training tasks {by_type(training)}, {len(held_out)} held-out tasks")
    checkpoints = CheckpointStore(files.checkpoints, settings.training.keep_checkpoints)
    latest = checkpoints.latest() if settings.run.resume == "auto" else None
    resumed_step = latest[0] if latest else None

    with ExitStack() as stack:
        terms, skill_loss = loss_terms(settings.method)
        cluster = PolicyCluster(config, token_terms=terms, auxiliary_loss=skill_loss)
        stack.callback(cluster.shutdown)
        with clock.phase("start policy"), console.quiet():
            cluster.start()
        play, counters = _player(stack, settings, spec, cluster.client(), clock, console)
        save_resolved(config, files.config)
        _write_panel(files.main / "panel.json", held_out)
        log = MetricsLog(files.metrics, resumed_step)
        trackers = Trackers(settings.logging.trackers, settings.logging.project, settings.run.name, config)
        stack.callback(trackers.close)

        def record(step: int, metrics: dict[str, Any]) -> None:
            metrics |= {f"workers/{name}": counters[name] for name in ("workers_replaced", "tasks_resubmitted")}
            log.write(step, metrics)
            trackers.log(step, metrics)
            print_step(console, step, settings.training.steps, metrics)
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
            evaluate=lambda step: _evaluate(play, held_out, settings, step),
            log=record,
            checkpoints=checkpoints,
            clock=clock,
        )
        if latest:
            with clock.phase("resume"):
                trainer.resume()
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
    stack: ExitStack, settings: RunSettings, spec: EnvironmentSpec, client: Any, clock: Any, console: RunConsole
) -> tuple[Callable[[Any, Sequence[Task], int], list[Any]], Counter[str]]:
    """The rollout workers, behind one function (program, tasks, step) -> results in the tasks' order; and their counters."""
    from agent_system.environments.client import EnvPool
    from agent_system.rollout.episode import Deadlines
    from agent_system.rollout.pool import Heartbeat, RolloutPool
    from agent_system.rollout.program import RolloutSettings
    from agent_system.rollout.prompting import Prompter

    workers, prompt = settings.workers, settings.prompt

    def open_sessions(number: int) -> EnvPool:
        return EnvPool(spec, num_hosts=workers.env_hosts, slots_per_host=workers.slots_per_host)

    pool = RolloutPool(
        workers.rollout_workers,
        spec=spec,
        prompter=Prompter(
            settings.policy.path,
            prompt.max_prompt_length,
            prompt.max_teacher_prompt_length,
            settings.policy.chat_template_kwargs,
        ),
        client=client,
        open_sessions=open_sessions,
        settings=RolloutSettings(
            run_seed=settings.run.seed,
            max_response_tokens=prompt.max_response_length,
            deadlines=Deadlines(workers.turn_deadline, workers.episode_deadline),
            concurrent_tasks=workers.concurrent_tasks,
        ),
        task_retries=workers.task_retries,
    )
    stack.callback(pool.close)

    def beat(state: Heartbeat) -> None:
        running = sum((progress or {}).get("episodes_running", 0) for progress in state.workers)
        clock.detail = f"{state.finished}/{state.total} tasks, {running} episodes running"

    def play(program: Any, tasks: Sequence[Task], step: int) -> list[Any]:
        results: dict[int, Any] = {}
        for index, result in pool.submit(
            program,
            tasks,
            step,
            deadline_s=workers.phase_deadline,
            heartbeat_s=settings.logging.heartbeat / 2,
            on_heartbeat=beat,
        ):
            results[index] = result
            clock.detail = f"{len(results)}/{len(tasks)} tasks"
            console.bar("tasks", len(results), len(tasks))
        ordered = [results[index] for index in range(len(tasks))]
        for line in loss_lines(ordered):
            console.print(line, style="yellow")
        return ordered

    return play, pool.counters


def _evaluate(
    play: Callable[..., list[Any]], tasks: Sequence[Task], settings: RunSettings, step: int
) -> dict[str, Any]:
    from agent_system.rollout.program import PanelEpisode
    from rsipo.record_keeping import success_metrics

    program = PanelEpisode(settings.evaluation.temperature, settings.evaluation.repeats)
    results = play(program, tasks, step)
    played = [(task.task_type, episode) for task, episodes in zip(tasks, results, strict=True) for episode in episodes]
    return success_metrics("evaluation", played)


def _write_panel(path: Path, tasks: Sequence[Task]) -> None:
    """Which held-out tasks are evaluated, by id and hash, beside the numbers they give."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps([{"task_id": task.task_id, "sha256": task.sha256} for task in tasks], indent=1), encoding="utf-8"
    )


@contextmanager
def _locked(files: RunFiles) -> Iterator[None]:
    """Hold the run folder, so that two processes never write one run."""
    files.root.mkdir(parents=True, exist_ok=True)
    with (files.root / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another process is writing {files.root}; wait for it, or choose another run.name"
            ) from None
        yield
