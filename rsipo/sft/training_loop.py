"""The epochs of fine-tuning: batches, validation, metrics and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rsipo.problems import UserError
from rsipo.run_console import RunConsole
from rsipo.run_files import MetricsLog
from rsipo.sft.training_settings import TrainingSettings

if TYPE_CHECKING:
    from verl_ext.batch import Sample
    from verl_ext.checkpoint import CheckpointStore
    from verl_ext.phases import PhaseClock
    from verl_ext.stopping import StopSwitch
    from verl_ext.supervised import SupervisedCluster

_LINES_PER_EPOCH = 10


@dataclass(frozen=True)
class Schedule:
    """Which samples each optimizer step takes. Depends on nothing but the three numbers and the seed.

    Every epoch takes every sample once; its last batch may be smaller.
    """

    samples: int
    batch_size: int
    epochs: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.samples // self.batch_size)

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def batches(self, after: int) -> Iterator[tuple[int, list[int]]]:
        """(step, indices of its samples) of every step after step ``after``; steps count from 1."""
        order: list[int] = []
        for step in range(after + 1, self.steps + 1):
            epoch, number = divmod(step - 1, self.steps_per_epoch)
            if number == 0 or not order:
                order = np.random.default_rng([self.seed, epoch]).permutation(self.samples).tolist()
            yield step, order[number * self.batch_size : (number + 1) * self.batch_size]


@dataclass
class FineTuning:
    """One run of fine-tuning on workers that are started.

    Attributes:
        schedule: of the training samples.
        identity: what a checkpoint is kept with and what must be the same to resume from it.
    """

    cluster: SupervisedCluster
    training: Sequence[Sample]
    validation: Sequence[Sample]
    settings: TrainingSettings
    schedule: Schedule
    identity: dict[str, Any]
    checkpoints: CheckpointStore
    log: MetricsLog
    console: RunConsole
    clock: PhaseClock
    stop: StopSwitch

    def fit(self, after: int) -> None:
        """Train the steps after step ``after``; the last one is saved.

        Raises:
            Stopped: it was asked to stop; the steps that were done are saved.
            UserError: a gradient that is not finite.
        """
        from verl_ext.stopping import Stopped

        schedule = self.schedule
        if after == 0:
            with self.clock.phase("validation"):
                loss = self.cluster.evaluate(self.validation)
            self.log.write(0, {"epoch": 0.0, "validation/loss": loss})
            self.console.print(f"validation loss before training: {loss:.4f}")
        shown = max(1, schedule.steps_per_epoch // _LINES_PER_EPOCH)
        with self.stop.deferred():
            for step, indices in schedule.batches(after):
                metrics = self._step(step, [self.training[index] for index in indices])
                self.console.bar("steps", step, schedule.steps)
                if step % shown == 0 or step % schedule.steps_per_epoch == 0:
                    self.console.print(
                        f"step {step}/{schedule.steps}  epoch {metrics['epoch']:.2f}  loss {metrics['loss']:.4f}  "
                        f"gradient norm {metrics['grad_norm']:.3f}  {metrics['tokens_per_second']:.0f} tokens/s"
                    )
                if step % schedule.steps_per_epoch == 0:
                    self._end_of_epoch(step, step // schedule.steps_per_epoch)
                if self.stop.reason is not None and step < schedule.steps:
                    raise Stopped(self.stop.reason, step, self._save(step))

    def _step(self, step: int, batch: Sequence[Sample]) -> dict[str, float]:
        started = time.monotonic()
        with self.clock.phase(f"step {step}"):
            report = self.cluster.train_step(batch)
        if not math.isfinite(report.grad_norm) or not math.isfinite(report.loss):
            raise UserError(
                f"step {step}: loss {report.loss}, gradient norm {report.grad_norm}: training went wrong; lower "
                "sft.learning_rate, or look at the model and the data"
            )
        tokens = sum(sample.length for sample in batch)
        metrics = {
            "epoch": step / self.schedule.steps_per_epoch,
            "loss": report.loss,
            "grad_norm": report.grad_norm,
            "learning_rate": report.learning_rate,
            "samples": len(batch),
            "tokens": tokens,
            "tokens_per_second": tokens / (time.monotonic() - started),
        }
        self.log.write(step, metrics)
        return metrics

    def _end_of_epoch(self, step: int, epoch: int) -> None:
        with self.clock.phase("validation"):
            loss = self.cluster.evaluate(self.validation)
        self.log.write(step, {"validation/loss": loss})
        self.console.print(f"epoch {epoch}/{self.settings.epochs}: validation loss {loss:.4f}")
        if epoch % self.settings.checkpoint_every == 0 or epoch == self.settings.epochs:
            self._save(step)

    def _save(self, step: int) -> Path:
        """The step's checkpoint, unless the end of an epoch has written it already."""
        if (latest := self.checkpoints.latest()) is not None and latest[0] == step:
            return latest[1]
        with self.clock.phase("checkpoint"):
            return self.checkpoints.save(step, self.identity, lambda folder: self.cluster.save(folder / "actor"))
