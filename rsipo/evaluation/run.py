"""One evaluation from its folder to its summary: play what is not played yet, on the workers and servers of training."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_system.environments.base import EnvironmentSpec, Task
from agent_system.files import write_atomically
from rsipo.evaluation.episodes import EpisodeLog, Key
from rsipo.evaluation.panel import Panel
from rsipo.evaluation.subject import Subject
from rsipo.evaluation.summary import summarise, summary_table
from rsipo.failures import as_user_errors, keep_stacks
from rsipo.problems import UserError
from rsipo.ray_cluster import prepare_environment, ray_cluster
from rsipo.rollouts import describe_heartbeat, open_pool
from rsipo.run_console import RunConsole, library_logs
from rsipo.run_files import locked
from rsipo.run_settings import RunSettings

if TYPE_CHECKING:
    from verl_ext.phases import PhaseClock

_ATTEMPTS = 3
"""How often an episode that the infrastructure loses is played before it stays lost."""

_LOOK_S = 0.2
"""Time between two looks for turns that are over."""

_HOPELESS = 50
"""So many episodes lost in a row at the start: something is down."""

_VERSIONED = (
    "rsipo",
    "verl",
    "torch",
    "transformers",
    "vllm",
    "ray",
    "numpy",
    "alfworld",
    "textworld",
    "fast-downward-textworld",
)


@dataclass(frozen=True, slots=True)
class EvaluationFiles:
    """The files of one evaluation, all in one folder."""

    root: Path

    @property
    def panel(self) -> Path:
        return self.root / "panel.json"

    @property
    def identity(self) -> Path:
        return self.root / "settings.json"

    @property
    def episodes(self) -> Path:
        return self.root / "episodes.jsonl"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def log(self) -> Path:
        return self.root / "evaluate.log"

    @property
    def worker_logs(self) -> Path:
        return self.root / "worker-logs"


Show = Callable[[RunConsole, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Watch:
    """Someone looks on: what is shown besides the progress, and recorded besides an evaluation's needs.

    Attributes:
        episode: shows an episode's record when it is over.
        turn: shows a turn's record when it is over (``PanelGame.turns``).
        in_detail: see ``PanelGame``.
    """

    episode: Show | None = None
    turn: Show | None = None
    in_detail: bool = False


def run_evaluation(
    subject: Subject,
    settings: RunSettings,
    spec: EnvironmentSpec,
    panel: Panel,
    folder: Path,
    watch: Watch = Watch(),
) -> dict[str, Any]:
    """Play the panel, go on where an earlier call stopped, and write the summary, which is returned.

    Raises:
        UserError: the folder holds another evaluation or is in use, or a fault that the user can act on.
    """
    prepare_environment(str(subject.config.trainer.device))
    files = EvaluationFiles(folder)
    with locked(folder, "name another folder with --out"), library_logs(files.log):
        console = RunConsole(files.log)
        try:
            with as_user_errors(folder, files.worker_logs, "the same command goes on where it stopped"):
                return _Evaluation(subject, settings, spec, panel, files, console, watch).run()
        finally:
            console.close()


class _Evaluation:
    def __init__(
        self,
        subject: Subject,
        settings: RunSettings,
        spec: EnvironmentSpec,
        panel: Panel,
        files: EvaluationFiles,
        console: RunConsole,
        watch: Watch,
    ) -> None:
        self._subject, self._settings, self._spec = subject, settings, spec
        self._panel, self._files, self._console, self._watch = panel, files, console, watch

    def run(self) -> dict[str, Any]:
        files, seeds = self._files, self._settings.panel.seeds
        sizes = ", ".join(f"{split} {len(tasks)}" for split, tasks in sorted(self._panel.splits.items()))
        self._console.print(f"Evaluation folder: {files.root}")
        self._console.print(f"Panel: {sizes}; rounds: {len(seeds)}; sha256 {self._panel.sha256[:16]}…")
        if self._panel.subset:
            self._console.print(f"This is a SUBSET of the panel: {self._panel.subset}.", style="yellow")
        identity = self._identity()
        self._begin(identity)
        log = EpisodeLog(files.episodes)
        wanted = {Key(split, seed, task.task_id): task for seed in seeds for split, task in self._panel.tasks}
        if todo := _unfinished(wanted, log):
            if done := len(wanted) - len(todo):
                self._console.print(f"{done} of {len(wanted)} episodes are there already.")
            self._play(todo, log)
        summary = summarise(self._panel, seeds, log.outcomes, identity)
        write_atomically(files.summary, json.dumps(summary, indent=1) + "\n")
        self._console.print(summary_table(summary))
        if lost := len(_unfinished(wanted, log)):
            self._console.print(
                f"{lost} episodes were lost and count as not solved; the same command plays them again.", style="yellow"
            )
        self._console.print(f"Summary: {files.summary}")
        return summary

    # ------------------------------------------------------------------ what it is

    def _identity(self) -> dict[str, Any]:
        """What decides the numbers. An evaluation may only be continued under the same."""
        self._console.print(
            f"Policy: {self._subject.name} ({self._subject.label}), on {self._subject.config.trainer.device}"
        )
        policy = self._subject.identity(lambda done, total: self._console.bar("hashing weights", done, total))
        settings, config = self._settings, self._subject.config
        protocol = {
            "seeds": settings.panel.seeds,
            "temperature": settings.panel.temperature,
            "skill": None,
            "env": settings.env.protocol,
            "max_prompt_length": settings.prompt.max_prompt_length,
            "max_response_length": settings.prompt.max_response_length,
            "chat_template_kwargs": settings.policy.chat_template_kwargs,
            "device": str(config.trainer.device),
            "rollout": str(config.actor_rollout_ref.rollout.name),
            "dtype": str(config.actor_rollout_ref.rollout.dtype),
        }
        return {
            "benchmark": self._panel.benchmark,
            "policy": policy,
            "subset": self._panel.subset,
            "panel": {
                "sha256": self._panel.sha256,
                "tasks": {split: len(tasks) for split, tasks in sorted(self._panel.splits.items())},
            },
            "protocol": protocol,
            "versions": _versions(),
        }

    def _begin(self, identity: dict[str, Any]) -> None:
        """Write panel and identity, or make sure that they are those the folder was begun with."""
        files = self._files
        if not files.identity.exists():
            if files.episodes.exists():
                raise UserError(
                    f"{files.root} holds episodes without {files.identity.name}: name another folder with --out"
                )
            self._panel.write(files.panel)
            write_atomically(files.identity, json.dumps(identity, indent=1) + "\n")
            return
        try:
            begun = _flat(json.loads(files.identity.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise UserError(f"{files.identity} cannot be read ({error}); name another folder with --out") from error
        now = _flat(json.loads(json.dumps(identity)))
        differ = [name for name in sorted(begun.keys() | now.keys()) if begun.get(name) != now.get(name)]
        if differ:
            first = f"{differ[0]} was {begun.get(differ[0])!r} and is now {now.get(differ[0])!r}"
            more = f" (also: {', '.join(differ[1:])})" if differ[1:] else ""
            raise UserError(f"{files.root} holds another evaluation: {first}{more}; name another folder with --out")
        if not files.panel.exists():
            self._panel.write(files.panel)

    # ------------------------------------------------------------------ playing

    def _play(self, todo: Mapping[Key, Task], log: EpisodeLog) -> None:
        from verl_ext.phases import PhaseClock

        settings = self._settings
        deadline_s = settings.workers.phase_deadline * len(settings.panel.seeds)
        clock = PhaseClock(
            lambda line: self._console.print(line, style="dim"),
            settings.logging.heartbeat,
            deadline_s,
            on_timeout=lambda phase: keep_stacks(self._files.worker_logs, phase),
        )
        with ExitStack() as stack:
            with clock.phase("start Ray"):
                stack.enter_context(ray_cluster(self._subject.config, self._files.worker_logs))
            client = self._serve(stack, clock) if self._subject.kind != "script" else None
            pool = open_pool(settings, self._spec, client, run_seed=0)
            stack.callback(pool.close)
            started = sum(seconds for name, seconds in clock.take().items() if name.startswith("seconds/"))
            self._console.print(f"Started in {started:.0f} s.")
            for _ in range(_ATTEMPTS):
                with clock.phase("evaluation"):
                    self._play_once(pool, todo, log, clock, deadline_s)
                todo = _unfinished(todo, log)

    def _serve(self, stack: ExitStack, clock: PhaseClock) -> Any:
        """Start the policy; returns the client of its servers."""
        from verl_ext.cluster import PolicyCluster

        workers = self._settings.workers
        sync_deadline = workers.sync_deadline
        cluster = PolicyCluster(
            self._subject.config, sync_deadline_s=sync_deadline, routing_slack=workers.routing_slack
        )
        stack.callback(cluster.shutdown)
        with clock.phase("start policy"), self._console.quiet():
            cluster.start()
        if self._subject.checkpoint is not None:
            with clock.phase("load checkpoint"), self._console.quiet():
                cluster.load(self._subject.checkpoint.absolute())
                cluster.sync_weights(self._subject.step or 0, sync_deadline)
        return cluster.client()

    def _play_once(
        self, pool: Any, todo: Mapping[Key, Task], log: EpisodeLog, clock: PhaseClock, deadline_s: float
    ) -> None:
        from rsipo.evaluation.program import PanelGame, as_task

        watch, queue = self._watch, self._turn_queue()

        def beat(state: Any) -> None:
            clock.detail = describe_heartbeat(state)
            show_turns()

        def show_turns() -> None:
            if queue is not None and watch.turn is not None:
                for turn in queue.get_nowait_batch(queue.qsize()):
                    watch.turn(self._console, turn)

        script = self._subject.name if self._subject.kind == "script" else None
        results = pool.submit(
            PanelGame(self._settings.panel.temperature, script, watch.in_detail, queue),
            [as_task(key, task) for key, task in todo.items()],
            0,
            deadline_s=deadline_s,
            heartbeat_s=_LOOK_S if queue is not None else self._settings.logging.heartbeat / 2,
            on_heartbeat=beat,
        )
        reasons: Counter[str] = Counter()
        with closing(results):  # an interruption cancels what is running
            for number, (_, record) in enumerate(results, start=1):
                log.append(record)
                show_turns()
                if watch.episode is not None:
                    watch.episode(self._console, record)
                clock.detail = f"{number}/{len(todo)} episodes"
                self._console.bar("episodes", number, len(todo))
                if record["status"] != "ok":
                    reasons[f"{record['status']}: {record['error']}"] += 1
                    if sum(reasons.values()) == number == _HOPELESS:
                        raise UserError(f"all of the first {number} episodes were lost, such as: {record['error']}")
        for reason, count in reasons.most_common(5):
            self._console.print(f"{count} lost: {reason}", style="yellow")

    def _turn_queue(self) -> Any:
        """A queue from the rollout workers to this process, where turns are watched."""
        from ray.util.queue import Queue

        return Queue(actor_options={"num_cpus": 0}) if self._watch.turn is not None else None


def _unfinished(wanted: Mapping[Key, Task], log: EpisodeLog) -> dict[Key, Task]:
    """The episodes that have not been played to their end."""
    return {key: task for key, task in wanted.items() if key not in log.outcomes or log.outcomes[key].lost}


def _versions() -> dict[str, str]:
    """The versions of what may change the numbers, as far as it is installed."""
    found = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
