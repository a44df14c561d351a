"""The base model and the benchmark of one data set, configured as they will be trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from agent_system.environments.base import EnvironmentSpec
from rsipo.evaluation.playing import TRAINING_TURNS, play_as_in_training, with_data
from rsipo.evaluation.subject import Subject, find_subject
from rsipo.run_settings import RunSettings
from rsipo.sft.layout import MAX_LENGTH
from rsipo.sft.tasks import SPLIT
from rsipo.specs import make_spec

_ROOM_FOR_ANSWER = 1024


@dataclass(frozen=True)
class Setup:
    """``subject`` plays ``settings.panel``: the training split, one round per rollout."""

    subject: Subject
    settings: RunSettings
    spec: EnvironmentSpec

    @property
    def benchmark(self) -> str:
        return self.settings.env.name

    @property
    def max_prompt_tokens(self) -> int:
        """Budget of an analysis prompt: that of training, and such that the sample with its answer can be trained on."""
        return min(self.settings.skill.max_prompt_length, MAX_LENGTH[self.benchmark] - _ROOM_FOR_ANSWER)


@contextmanager
def open_setup(
    environment: str, model: str | None, overrides: Sequence[str], *, rollouts: int = 8, seed: int = 0
) -> Iterator[Setup]:
    """Everything composed and checked; for an embedded policy also its data made and its service running in the block.

    Args:
        model: a folder, or a name under ``MODELS_ROOT``; None for the embedded policy.
        overrides: Hydra overrides.
        rollouts: episodes per task; their seeds follow from ``seed``.

    Raises:
        UserError: whatever is wrong with them.
    """
    asked = [*overrides, TRAINING_TURNS]
    subject = find_subject(environment, model, None, asked, hf=True, script=None)
    play_as_in_training(subject, SPLIT, range(seed * rollouts, (seed + 1) * rollouts))
    with with_data(subject, asked) as ready:
        settings = RunSettings.from_config(ready.config)
        yield Setup(ready, settings, make_spec(settings.env))
