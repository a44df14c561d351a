"""AgentPPOTrainer: veRL's PPO loop for turn-level agent samples; a subclass says what one step consists of."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from verl_ext.advantage import group_advantages
from verl_ext.batch import Sample
from verl_ext.checkpoint import CheckpointStore
from verl_ext.cluster import PolicyCluster, UpdateReport
from verl_ext.phases import PhaseClock, PhaseTimeout, deadline, process_memory
from verl_ext.rollout_correction import FIELD, correction_weights
from verl_ext.stopping import Stopped, StopSwitch

logger = logging.getLogger(__name__)

Metrics = dict[str, Any]


class TrainingFault(Exception):
    """Training cannot go on (nothing to train on, nothing left to do). The message says why and what to do."""


def nothing_to_train(step: int, last: int) -> str:
    """What to tell of a run whose ``last`` step is done."""
    return f"nothing to train: step {step} of {last} is already done; raise training.steps to go on, or evaluate"


@dataclass(frozen=True, slots=True)
class PPOSettings:
    """What the loop itself needs to know. ``mini_batch_size`` counts samples (turns) over all ranks."""

    total_steps: int
    mini_batch_size: int
    temperature: float
    use_reference: bool
    seed: int
    sync_deadline_s: float
    checkpoint_every: int
    evaluate_every: int = 0
    evaluate_at_start: bool = False
    evaluate_at_end: bool = False
    advantage: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TurnSample:
    """One turn of one episode: what is trained on, and what its advantage is computed from.

    ``reward`` is the episode's outcome reward, ``penalty`` (>= 0) that of this turn's invalid action;
    ``rollout_log_probs`` float32 [R] are the rollout server's, for the log-probability gap; ``origin`` is whatever the
    algorithm wants to remember of the turn.
    """

    sample: Sample
    group: str
    episode: str
    reward: float
    penalty: float
    rollout_log_probs: np.ndarray
    origin: Any = None


class AgentPPOTrainer(ABC):
    """The loop of steps, evaluations and checkpoints, and the parts of a step: scores, one pass of PPO mini-batches, sync.

    Args:
        cluster: the started policy cluster.
        settings: the loop's settings.
        evaluate: plays the held-out tasks and returns metrics.
        log: takes (step, metrics) once per step; a second time where the step's evaluation had to be made up for.
        checkpoints, clock: where to save, how to time.
        stop: whether the run was asked to stop.
    """

    def __init__(
        self,
        cluster: PolicyCluster,
        settings: PPOSettings,
        *,
        evaluate: Callable[[int], Metrics],
        log: Callable[[int, Metrics], None],
        checkpoints: CheckpointStore,
        clock: PhaseClock,
        stop: StopSwitch | None = None,
    ) -> None:
        self.cluster = cluster
        self.settings = settings
        self.step = 0
        self.clock = clock
        self.stop = stop or StopSwitch()
        self._evaluate = evaluate
        self._log = log
        self._checkpoints = checkpoints
        self._unlogged: Metrics | None = None  # of a step that is done
        self._evaluation_owed = False  # by a step that was done before this process began

    # ------------------------------------------------------------------ the loop

    def fit(self) -> None:
        """Train from the current step to ``total_steps``.

        When it is asked to stop, rollouts and evaluations end at once and everything else is finished first; then the last
        step is saved. It is saved as well when rollouts or an evaluation fail.

        Raises:
            Stopped: it was asked to stop, and everything is saved.
            KeyboardInterrupt: it was asked twice; what is on disk is whole, the last step may not be among it.
            TrainingFault: there is nothing left to train, or a step had no sample at all.
        """
        last = self.settings.total_steps
        if self.step >= last and not self._evaluation_owed:
            raise TrainingFault(nothing_to_train(self.step, last))
        try:
            with self.stop.deferred():
                self._steps()
        except TrainingFault:
            self._try_to_save()
            raise
        except KeyboardInterrupt:
            if self.stop.reason is None or self.stop.insisted:
                raise
            with self.stop.deferred():
                saved = self._save_what_is_done()
            raise Stopped(self.stop.reason, self.step, saved) from None
        finally:
            self.stop.finish()

    def _steps(self) -> None:
        last = self.settings.total_steps
        if self.step == 0 and self.settings.evaluate_at_start:
            self._log(0, self._timed_evaluation(0) | self.clock.take() | process_memory())
        elif self._evaluation_owed:
            self._log(self.step, self._timed_evaluation(self.step))
            self.clock.take()
        for step in range(self.step + 1, last + 1):
            self._unlogged = self.train_step(step)
            self.step = step
            if self._evaluation_due(step):
                self._unlogged |= self._timed_evaluation(step)
            self._log_step()
            if step == last or (self.settings.checkpoint_every and step % self.settings.checkpoint_every == 0):
                with self.clock.phase("checkpoint"):
                    self.save()
                    if step < last:  # saving lets servers that share the devices sleep
                        self.cluster.wake(self.settings.sync_deadline_s)

    def _log_step(self) -> None:
        if self._unlogged is not None:
            self._log(self.step, self._unlogged | self.clock.take() | process_memory())
            self._unlogged = None

    def _save_what_is_done(self) -> Path | None:
        """The checkpoint of the current step, written unless there is one; None before the first step."""
        self._log_step()
        if self.step == 0:
            return None
        latest = self._checkpoints.latest()
        if latest is not None and latest[0] == self.step:
            return latest[1]
        self.cluster.abort_requests()
        with self.clock.phase("checkpoint"):
            return self.save()

    @contextmanager
    def playing(self, phase: str) -> Iterator[None]:
        """A phase of episodes: it may be stopped at once, and when it fails, the steps before it are saved.

        Raises:
            ClusterError: a rollout server is not there any more. Its episodes were lost, and no sync would succeed.
        """
        try:
            with self.clock.phase(phase), self.stop.allowed():
                yield
                self.cluster.check_servers(self.settings.sync_deadline_s)
        except Exception:
            self._try_to_save()
            raise

    def _try_to_save(self) -> None:
        limit_s = self.settings.sync_deadline_s
        try:
            with deadline(limit_s, PhaseTimeout(f"saving did not end within {limit_s:g} s")):
                saved = self._save_what_is_done()
            logger.warning("step %d is saved: %s", self.step, saved or "nothing was done yet")
        except Exception:
            logger.exception("step %d could not be saved", self.step)

    @abstractmethod
    def train_step(self, step: int) -> Metrics:
        """One training step, put together from the parts below. ``score``, ``update`` and ``sync`` alone are GRPO."""

    # ------------------------------------------------------------------ its parts

    def score(self, turns: Sequence[TurnSample]) -> Metrics:
        """Add old and reference log-probabilities and advantages to the samples."""
        if not turns:
            raise TrainingFault(
                "no episode of this step survived, so there is nothing to train on: see the failures above"
            )
        with self.clock.phase("log_probs"):
            pairs = [(turn.sample.prompt_ids, turn.sample.response_ids) for turn in turns]
            old = self.cluster.log_probs(pairs, temperature=self.settings.temperature)
            reference = None
            if self.settings.use_reference:
                reference = self.cluster.log_probs(pairs, role="reference", temperature=self.settings.temperature)
        advantages, diagnostics = group_advantages(
            [turn.group for turn in turns],
            [turn.episode for turn in turns],
            [turn.reward for turn in turns],
            [turn.penalty for turn in turns],
            **self.settings.advantage,
        )
        for index, turn in enumerate(turns):
            tokens = turn.sample.tokens
            tokens["old_log_probs"] = old[index]
            tokens["advantages"] = np.full(len(turn.sample.response_ids), advantages[index], dtype=np.float32)
            if reference is not None:
                tokens["ref_log_prob"] = reference[index]
        correction = self.cluster.config.algorithm.rollout_correction
        if correction.rollout_is is not None:
            weights, mismatch = correction_weights(old, [turn.rollout_log_probs for turn in turns], correction)
            diagnostics |= mismatch
            for turn, values in zip(turns, weights, strict=True):
                turn.sample.tokens[FIELD] = values
        gaps = np.concatenate([np.abs(turn.rollout_log_probs - old[i]) for i, turn in enumerate(turns)])
        lengths = np.array([len(turn.sample.response_ids) for turn in turns])
        prompts = np.array([len(turn.sample.prompt_ids) for turn in turns])
        return diagnostics | {
            "batch/turns": len(turns),
            "batch/response_tokens": int(lengths.sum()),
            "length/response_mean": float(lengths.mean()),
            "length/response_max": int(lengths.max()),
            "length/prompt_mean": float(prompts.mean()),
            "length/prompt_max": int(prompts.max()),
            "rollout/log_prob_gap_mean": float(gaps.mean()),
            "rollout/log_prob_gap_max": float(gaps.max()),
        }

    def update(self, step: int, turns: Sequence[TurnSample], auxiliary: Sequence[Sample] = ()) -> UpdateReport:
        """One pass over the samples in PPO mini-batches; ``auxiliary`` joins the last one."""
        self.stop.check()  # from here to the end of the step, the weights belong to no step
        with self.clock.phase("update"):
            return self.cluster.update(
                [turn.sample for turn in turns],
                list(auxiliary),
                mini_batch_size=self.settings.mini_batch_size,
                seed=self.settings.seed * 1_000_003 + step,
                temperature=self.settings.temperature,
            )

    def sync(self, version: int) -> None:
        """Hand the new weights to the rollout servers; their outputs then carry ``version``."""
        with self.clock.phase("weight_sync"):
            self.cluster.sync_weights(version, timeout_s=self.settings.sync_deadline_s)

    def update_metrics(self, report: UpdateReport) -> Metrics:
        """Means over the mini-batches, and the first one's PPO ratio by itself: on-policy, it should be one."""
        names = sorted({name for metrics in report.mini_batches for name in metrics})
        means = {
            name: float(np.mean([metrics[name] for metrics in report.mini_batches if name in metrics]))
            for name in names
        }
        first = {f"first_mini_batch/{name}": value for name, value in report.mini_batches[0].items() if "ratio" in name}
        return (
            means
            | first
            | {
                "update/mini_batches": len(report.mini_batches),
                "update/grad_norm": float(np.mean(report.grad_norms)),
                "update/grad_norm_max": float(np.max(report.grad_norms)),
                "update/applied": report.applied,
                "update/learning_rate": report.learning_rate,
            }
        )

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """The loop's own state, JSON-able. Random numbers are derived from (seed, step), so the step is all there is."""
        return {"step": self.step, "seed": self.settings.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["seed"] != self.settings.seed:
            raise TrainingFault(
                f"the checkpoint was made with run.seed={state['seed']}, not {self.settings.seed}; use that seed"
            )
        self.step = int(state["step"])

    def save(self) -> Path:
        """Write a complete checkpoint of the current step, or raise CheckpointError and leave the older ones alone."""
        state = json.loads(json.dumps(self.state_dict()))
        return self._checkpoints.save(self.step, state, lambda folder: self.cluster.save(folder / "actor"))

    def resume(self, *, evaluated: bool = True) -> bool:
        """Go on from the newest complete checkpoint, weights synced to the servers. False when there is none.

        Args:
            evaluated: whether the checkpoint's step has its evaluation; ``fit`` makes up for one that was due.
        """
        latest = self._checkpoints.latest()
        if latest is None:
            return False
        _, path = latest
        self.load_state_dict(self._checkpoints.read_state(path))
        self.cluster.load(path / "actor")
        self.sync(self.step)
        self._evaluation_owed = not evaluated and self._evaluation_due(self.step)
        return True

    # ------------------------------------------------------------------ evaluation

    def _evaluation_due(self, step: int) -> bool:
        settings = self.settings
        if step == settings.total_steps:
            return settings.evaluate_at_end
        return bool(settings.evaluate_every) and step % settings.evaluate_every == 0

    def _timed_evaluation(self, step: int) -> Metrics:
        with self.playing("evaluation"):
            return self._evaluate(step)
