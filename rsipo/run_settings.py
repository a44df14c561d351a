"""The typed sections of a run's configuration that are not the algorithm's (those are in ``settings.py``)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeVar

from omegaconf import DictConfig
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rsipo.configuration import nearest, section
from rsipo.problems import UserError
from rsipo.settings import AdvantageSettings, AlgorithmSettings, CheckSettings, MethodSettings, SkillSettings


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunSection(_Section):
    name: str
    """Name of the run's folder."""
    work_dir: str
    directory: str
    seed: int = Field(ge=0)
    resume: Literal["never", "auto"]

    @field_validator("name")
    @classmethod
    def _stays_in_its_folder(cls, name: str) -> str:
        if not name or "/" in name or name.startswith("."):
            raise ValueError("a folder's name is wanted, without a slash and a leading dot")
        return name


class PolicySection(_Section):
    path: str
    chat_template_kwargs: dict[str, Any]


class TrainingSection(_Section):
    """Table 2. ``ppo_mini_batch_size`` counts samples (turns) over all ranks."""

    steps: int = Field(ge=1)
    tasks_per_step: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, le=1)
    weight_decay: float = Field(ge=0)
    ppo_mini_batch_size: int = Field(ge=1)
    clip_ratio: float = Field(gt=0)
    kl_coefficient: float = Field(ge=0)
    entropy_coefficient: float = Field(ge=0)
    temperature: float = Field(gt=0)
    checkpoint_every: int = Field(ge=0)
    keep_checkpoints: int | None = Field(ge=1)


class PromptSection(_Section):
    """Lengths in tokens."""

    max_prompt_length: int = Field(ge=16)
    max_teacher_prompt_length: int = Field(ge=16)
    max_response_length: int = Field(ge=1)


class WorkersSection(_Section):
    """Deadlines in seconds."""

    rollout_workers: int = Field(ge=1)
    env_hosts: int = Field(ge=1)
    slots_per_host: int = Field(ge=1)
    concurrent_tasks: int = Field(ge=1)
    turn_deadline: float = Field(gt=0)
    episode_deadline: float = Field(gt=0)
    phase_deadline: float = Field(gt=0)
    sync_deadline: float = Field(gt=0)
    task_retries: int = Field(ge=0)
    max_lost: float = Field(ge=0, le=1)
    routing_slack: int | None = Field(ge=0)


class EvaluationSection(_Section):
    split: str
    every: int = Field(ge=0)
    at_start: bool
    at_end: bool
    tasks: int | None = Field(ge=1)
    repeats: int = Field(ge=1)
    temperature: float = Field(ge=0)


class PanelSection(_Section):
    """What ``rsipo evaluate`` plays: each split's expected number of tasks (None: any), and one round per seed."""

    splits: dict[str, int | None] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)
    temperature: float = Field(ge=0)
    max_turns: int | None = Field(ge=1)
    sha256: str | None
    folder: str = Field(min_length=1)

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("every round needs a seed of its own")
        return seeds


class LoggingSection(_Section):
    trackers: list[str]
    project: str
    heartbeat: float = Field(gt=0)


class DebugSection(_Section):
    """``load_rollouts``: a folder of ``step-*.jsonl.gz`` that an earlier run with ``save_rollouts`` has written."""

    save_rollouts: bool
    load_rollouts: str | None


class HealthSection(_Section):
    """Thresholds of the health alarms, see ``HealthMonitor``; None switches one off. Ratios are to the running median."""

    action: Literal["warn", "stop"]
    window: int = Field(ge=1)
    min_steps: int = Field(ge=1)
    grad_norm_ratio: float | None = Field(gt=1)
    grad_norm_floor: float = Field(ge=0)
    entropy_ratio: float | None = Field(gt=1)
    response_length_ratio: float | None = Field(gt=1)
    log_prob_gap: float | None = Field(gt=0)
    success_drop: float | None = Field(gt=0, lt=1)
    success_window: int = Field(ge=1)


class EnvSection(_Section):
    """What every benchmark has. The sections of the benchmarks add their own settings; ``name`` says which one it is.

    ``name``, ``data_root``, ``train_split`` and ``task_types`` are for the training run, the rest for the specification.
    """

    #: What says where something lies or what training does, not how an episode goes.
    _NO_MATTER: ClassVar[frozenset[str]] = frozenset({
        "name", "data_root", "train_data", "test_data", "train_split", "task_types", "cache_dir", "trusted_manifest",
        "retriever_urls", "retrieval_timeout", "success_reward", "invalid_action_penalty",
    })  # fmt: skip

    name: str
    data_root: str
    train_split: str
    task_types: list[str] | None = Field(min_length=1)
    max_turns: int = Field(ge=1)
    history_length: int = Field(ge=0)
    success_reward: float = Field(gt=0)
    invalid_action_penalty: float = Field(ge=0)
    inadmissible_is_invalid: bool
    prompt_profile: Literal["full", "compact"]

    @property
    def protocol(self) -> dict[str, Any]:
        """The settings that decide how an episode goes."""
        return {name: value for name, value in self.model_dump().items() if name not in self._NO_MATTER}


class AlfworldSection(EnvSection):
    """ALFWorld; see ``AlfworldSpec``."""

    name: Literal["alfworld"]
    engine: Literal["fast", "stock"]
    cache_dir: str | None
    trusted_manifest: str | None


class SearchSection(EnvSection):
    """Search-based question answering; see ``SearchSpec``."""

    name: Literal["search"]
    train_data: str | None
    test_data: str | None
    retriever_urls: list[str] = Field(min_length=1)
    top_k: int = Field(ge=1)
    retrieval_timeout: float = Field(gt=0)
    observation_form: Literal["json", "json_unicode", "plain"]


ENVIRONMENTS: dict[str, type[EnvSection]] = {"alfworld": AlfworldSection, "search": SearchSection}


class RunSettings(_Section):
    """All sections of one run, validated together."""

    run: RunSection
    policy: PolicySection
    training: TrainingSection
    advantage: AdvantageSettings
    prompt: PromptSection
    check: CheckSettings
    skill: SkillSettings
    method: MethodSettings
    env: AlfworldSection | SearchSection
    workers: WorkersSection
    evaluation: EvaluationSection
    panel: PanelSection
    logging: LoggingSection
    debug: DebugSection
    health: HealthSection

    @classmethod
    def from_config(cls, config: DictConfig) -> RunSettings:
        """Read and validate every section.

        Raises:
            UserError: naming the setting, its value and what is allowed.
        """
        environment = section(config, "env")
        models = {**_SECTIONS, "env": _environment_section(environment.get("name"))}
        values: dict[str, Any] = {name: _read(model, section(config, name), name) for name, model in models.items()}
        settings = cls(**values)
        _read(
            AlgorithmSettings, {name: getattr(settings, name) for name in AlgorithmSettings.model_fields}, "algorithm"
        )
        return settings

    @property
    def algorithm(self) -> AlgorithmSettings:
        """The algorithm's sections together."""
        return AlgorithmSettings(method=self.method, check=self.check, skill=self.skill, advantage=self.advantage)


_SECTIONS: dict[str, type[BaseModel]] = {
    name: field.annotation for name, field in RunSettings.model_fields.items() if isinstance(field.annotation, type)
}

Model = TypeVar("Model", bound=BaseModel)


def _environment_section(name: object) -> type[EnvSection]:
    """The section's model by the benchmark's name; raises UserError for a name that is none."""
    if found := ENVIRONMENTS.get(str(name)):
        return found
    raise UserError(f"env.name={name!r}: {nearest(str(name), list(ENVIRONMENTS))}")


def _read(model: type[Model], values: dict[str, Any], name: str) -> Model:
    try:
        return model(**values)
    except ValidationError as error:
        lines = []
        for detail in error.errors():
            key = ".".join(str(part) for part in (name, *detail["loc"]))
            message = detail["msg"].removeprefix("Value error, ")
            if detail["type"] == "extra_forbidden":
                lines.append(f"unknown setting '{key}': {nearest(str(detail['loc'][-1]), list(model.model_fields))}")
            elif detail["loc"]:
                lines.append(f"{key}={detail['input']!r}: {message}")
            else:  # a rule about the section as a whole
                lines.append(message)
        raise UserError("; ".join(lines)) from error
