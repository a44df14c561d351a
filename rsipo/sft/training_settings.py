"""What fine-tuning is asked to do: its own few settings, and veRL's configuration with them put in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rsipo.configuration import compose_run, nearest
from rsipo.launch import Request, request_overrides
from rsipo.models import read_model
from rsipo.preflight import hardware_profile
from rsipo.problems import UserError
from rsipo.run_settings import RunSettings
from rsipo.sft.layout import MAX_LENGTH

_PREFIX = "sft."


class TrainingSettings(BaseModel):
    """Stage 1 as published (data set card: epochs, learning rate, batch); the rest are veRL's defaults.

    Attributes:
        batch_size: samples per optimizer step over all ranks.
        max_length: longest sample, prompt and response, in tokens; None: that of the benchmark, or the model's context
            where that is shorter.
        warmup_ratio: share of the steps over which the learning rate rises; then it is constant, or falls as a cosine.
        checkpoint_every: in epochs; the last epoch is always saved.
        seed: decides the order of the samples.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: int = Field(default=3, ge=1)
    learning_rate: float = Field(default=5e-6, gt=0)
    batch_size: int = Field(default=8, ge=1)
    max_length: int | None = Field(default=None, ge=2)
    weight_decay: float = Field(default=0.01, ge=0)
    warmup_ratio: float = Field(default=0.0, ge=0, le=1)
    schedule: str = Field(default="constant", pattern="^(constant|cosine)$")
    checkpoint_every: int = Field(default=1, ge=1)
    seed: int = Field(default=0, ge=0)


@dataclass(frozen=True)
class TrainingSetup:
    """A composed fine-tuning run.

    Attributes:
        config: as of ``rsipo train``; its rollout, method and environment sections are not used.
        run: the sections of it that are not veRL's.
        max_length: in tokens.
    """

    benchmark: str
    settings: TrainingSettings
    config: DictConfig
    run: RunSettings
    max_length: int

    @property
    def resumes(self) -> bool:
        """Whether what an earlier run of this name has done is gone on with."""
        return self.run.run.resume == "auto"

    def set_steps(self, steps: int) -> None:
        """Tell the learning-rate schedule how many optimizer steps there will be."""
        OmegaConf.update(self.config, "training.steps", steps)
        OmegaConf.update(self.config, "actor_rollout_ref.actor.optim.total_training_steps", steps)


def compose_training(benchmark: str, model: str | None, name: str, overrides: Sequence[str]) -> TrainingSetup:
    """Compose the run ``name``.

    Args:
        model: a folder, or a name under ``MODELS_ROOT``; None for the embedded policy.
        overrides: ``sft.KEY=VALUE`` of ``TrainingSettings``, and Hydra overrides of the run. Without ``hardware=`` a model is
            trained on the GPUs there are, else on the CPU.

    Raises:
        UserError: an unknown key or a value of the wrong form; no model, or one that is not whole.
    """
    own = [text for text in overrides if text.startswith(_PREFIX)]
    others = [text for text in overrides if not text.startswith(_PREFIX)]
    settings = _read(own)
    given = {text.split("=", 1)[0] for text in others}
    defaults = [
        f"run.name='{name}'",
        f"training.learning_rate={settings.learning_rate}",
        f"training.weight_decay={settings.weight_decay}",
        f"training.warmup_ratio={settings.warmup_ratio}",
        f"actor_rollout_ref.actor.optim.lr_scheduler_type={settings.schedule}",
    ]
    if model is not None:
        defaults.append(f"hardware={hardware_profile()}")
    asked = [*(text for text in defaults if text.split("=", 1)[0] not in given), *others]
    config = compose_run(request_overrides(Request(benchmark, model, tuple(asked))))
    max_length = _max_length(settings, benchmark, Path(str(config.policy.path)))
    actor = config.actor_rollout_ref.actor
    actor.ppo_max_token_len_per_gpu = max(
        actor.ppo_max_token_len_per_gpu, -(-max_length // actor.ulysses_sequence_parallel_size)
    )
    return TrainingSetup(benchmark, settings, config, RunSettings.from_config(config), max_length)


def _max_length(settings: TrainingSettings, benchmark: str, model: Path) -> int:
    context = read_model(model).context_length
    if settings.max_length is None:
        return min(MAX_LENGTH[benchmark], context)
    if settings.max_length > context:
        raise UserError(
            f"sft.max_length={settings.max_length} exceeds the context of {model}, {context} tokens: lower it"
        )
    return settings.max_length


def run_name(export: Path) -> str:
    """The run that makes the model ``export``."""
    return f"sft-{export.name}"


def _read(overrides: Sequence[str]) -> TrainingSettings:
    try:
        values = OmegaConf.to_container(OmegaConf.from_dotlist([text.removeprefix(_PREFIX) for text in overrides]))
        return TrainingSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            hint = nearest(key, list(TrainingSettings.model_fields))
            raise UserError(f"unknown setting '{_PREFIX}{key}': {hint}") from None
        raise UserError(f"{_PREFIX}{key}={first['input']}: {first['msg'].lower()}") from None
    except (OmegaConfBaseException, ValueError) as error:
        raise UserError(f"bad override in {' '.join(overrides)}: {str(error).splitlines()[0]}") from error
