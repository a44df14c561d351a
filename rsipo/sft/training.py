"""``rsipo sft train``: from a data folder to a model folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_system.files import file_sha256
from agent_system.rollout.prompting import Prompter
from rsipo.configuration import save_resolved
from rsipo.failures import as_user_errors, keep_stacks
from rsipo.preflight import verl_problems, version_problems
from rsipo.problems import RunStopped, UserError
from rsipo.ray_cluster import prepare_environment, ray_cluster
from rsipo.run_console import RunConsole, library_logs
from rsipo.run_files import MetricsLog, RunFiles, locked
from rsipo.sft.layout import SftFiles
from rsipo.sft.training_export import check_export_folder, check_exported, export_model, is_exported
from rsipo.sft.training_loop import FineTuning, Schedule
from rsipo.sft.training_samples import EncodedFile, encode_file, read_rows
from rsipo.sft.training_settings import TrainingSetup, run_name
from rsipo.stage_progress import StageProgress

if TYPE_CHECKING:
    from verl_ext.checkpoint import CheckpointStore

_REMEDY = "RESUME=true goes on from the last checkpoint"


@dataclass(frozen=True)
class Job:
    """A fine-tuning run with its data read: everything that can be found wrong without a worker has been looked for."""

    setup: TrainingSetup
    files: RunFiles
    export: Path
    training: EncodedFile
    validation: EncodedFile
    identity: dict[str, Any]

    @property
    def schedule(self) -> Schedule:
        settings = self.setup.settings
        return Schedule(len(self.training.samples), settings.batch_size, settings.epochs, settings.seed)

    @property
    def origin(self) -> dict[str, Any]:
        """What the exported model says it was made from."""
        return self.identity | {"steps": self.schedule.steps}

    @property
    def another(self) -> str:
        """What to change for another run folder, for a person."""
        if self.setup.run.run.name == run_name(self.export):
            return "another EXPORT_MODEL_DIR, after which the run is named"
        return "another run.name"

    def describe(self) -> list[str]:
        """What will be done, for a person."""
        trainer, settings = self.setup.config.trainer, self.setup.settings
        return [
            *self.training.describe(self.setup.max_length),
            *self.validation.describe(self.setup.max_length),
            f"{settings.epochs} epochs of {self.schedule.steps_per_epoch} steps, {settings.batch_size} samples each; "
            f"learning rate {settings.learning_rate:g} ({settings.schedule}); "
            f"{trainer.n_gpus_per_node * trainer.nnodes} ranks on {trainer.device}; samples of up to "
            f"{self.setup.max_length} tokens",
            f"Model: {self.setup.run.policy.path}",
            f"Run folder: {self.files.root}",
            f"Export: {self.export}",
        ]


def prepare(setup: TrainingSetup, data: Path, export: Path) -> Job:
    """Read and check everything. Starts nothing and writes nothing.

    Raises:
        UserError: what is wrong with the model, the data, the software or the export folder.
    """
    prepare_environment(str(setup.config.trainer.device))
    if not (setup.resumes and is_exported(export)):  # of this run, which goes on to say that all is done
        check_export_folder(export)
    model = Path(setup.run.policy.path)
    rollout = "cpu" if str(setup.config.trainer.device) == "cpu" else "vllm"
    if problems := version_problems(str(setup.config.trainer.device), rollout) + verl_problems(setup.config):
        raise UserError("\nrsipo: ".join(problems))
    if not data.is_dir():
        raise UserError(f"no folder {data}: DATA_DIR is what prepare_data.sh wrote")
    paths = SftFiles(data)
    prompter = Prompter(str(model), setup.max_length, setup.max_length, setup.run.policy.chat_template_kwargs)
    rows = {path: read_rows(path, setup.benchmark) for path in (paths.train, paths.validation)}
    with StageProgress(transient=True) as progress:
        training, validation = (
            encode_file(path, found, prompter, setup.max_length, partial(progress, path.name))
            for path, found in rows.items()
        )
    identity = {
        "settings": setup.settings.model_dump(exclude={"checkpoint_every"}) | {"max_length": setup.max_length},
        "model": str(model),
        "train": file_sha256(paths.train),
        "validation": file_sha256(paths.validation),
    }
    job = Job(setup, RunFiles(Path(setup.run.run.directory)), export, training, validation, identity)
    setup.set_steps(job.schedule.steps)
    return job


def run(job: Job) -> None:
    """Train and export; what a previous run of the same name has done is gone on with where ``run.resume`` is ``auto``.

    Raises:
        UserError: every failure that a user can act on; RunStopped after a signal.
    """
    job.files.main.mkdir(parents=True, exist_ok=True)
    with library_logs(job.files.log), locked(job.files.root, "wait for it, or choose another run.name=…"):
        console = RunConsole(job.files.log)
        try:
            with as_user_errors(job.files.root, job.files.worker_logs, _REMEDY):
                for line in job.describe():
                    console.print(line)
                _run(job, console)
        except UserError as error:
            logging.getLogger(__name__).error(error)
            raise
        finally:
            console.close()


def _run(job: Job, console: RunConsole) -> None:
    from verl_ext.checkpoint import CheckpointStore

    store = CheckpointStore(job.files.checkpoints, keep=1)
    done = _resumable(job, store)
    if is_exported(job.export):
        if done is None or done[0] < job.schedule.steps:
            check_export_folder(job.export)
        check_exported(job.export, job.origin, lambda read, total: console.bar("comparing the export", read, total))
        console.print(f"All {job.schedule.steps} steps are done and exported. Model: {job.export}")
        return
    if done is None or done[0] < job.schedule.steps:
        _train(job, store, done, console)
    last = store.latest()
    assert last is not None, "the last step is always saved"
    compared = export_model(job.setup, job.files, *last, job.export, job.origin)
    console.print(f"Verified: every weight, the logits and {compared} texts' token ids equal the checkpoint's")
    console.print(f"Model: {job.export}")


def _resumable(job: Job, store: CheckpointStore) -> tuple[int, Path] | None:
    """The checkpoint to go on from; None for a new run.

    Raises:
        UserError: the folder is used and not to be resumed, or the checkpoint is of other data or settings.
    """
    latest = store.latest()
    if not job.setup.resumes:
        if latest is not None or job.files.is_used():
            raise UserError(
                f"{job.files.root} holds a run already: RESUME=true goes on with it, or choose {job.another}"
            )
        return None
    if latest is None:
        return None
    state = store.read_state(latest[1])
    if changed := [name for name, value in job.identity.items() if state.get(name) != value]:
        raise UserError(
            f"{latest[1]} was made with other {', '.join(changed)}: go on with the same, or choose {job.another}"
        )
    return latest


def _train(job: Job, store: CheckpointStore, done: tuple[int, Path] | None, console: RunConsole) -> None:
    from verl_ext.phases import PhaseClock
    from verl_ext.stopping import Stopped, StopSwitch
    from verl_ext.supervised import SupervisedCluster

    config, run = job.setup.config, job.setup.run
    stop = StopSwitch()
    clock = PhaseClock(
        lambda line: console.print(line, style="dim"),
        run.logging.heartbeat,
        run.workers.phase_deadline,
        on_timeout=lambda phase: keep_stacks(job.files.worker_logs, phase),
    )
    with _as_stop(stop), ExitStack() as stack:
        with clock.phase("start Ray"):
            stack.enter_context(ray_cluster(config, job.files.worker_logs, stop.on_signal))
        cluster = SupervisedCluster(config)
        stack.callback(cluster.shutdown)
        with clock.phase("start workers"), console.quiet():
            cluster.start()
            if done is not None:
                cluster.load(done[1] / "actor")
        save_resolved(config, job.files.config)
        if done is not None:
            console.print(f"Resumed from step {done[0]}: {done[1]}")
        step = done[0] if done else 0
        log = MetricsLog(job.files.metrics, step if done else None)
        tuning = FineTuning(
            cluster=cluster,
            training=job.training.samples,
            validation=job.validation.samples,
            settings=job.setup.settings,
            schedule=job.schedule,
            identity=job.identity,
            checkpoints=store,
            log=log,
            console=console,
            clock=clock,
            stop=stop,
        )
        try:
            tuning.fit(step)
        except Stopped as stopped:
            raise RunStopped(f"{stopped}; {_REMEDY}", stop.exit_status) from None


@contextmanager
def _as_stop(stop: Any) -> Iterator[None]:
    """A signal that interrupted what is not finished first, said in a line."""
    try:
        yield
    except KeyboardInterrupt:
        if stop.reason is None:
            raise
        raise RunStopped(
            f"stopped by {stop.reason}; nothing that was saved is lost, {_REMEDY}", stop.exit_status
        ) from None
