"""The algorithm's settings, with the paper's values (Table 2) as defaults. Every model is frozen and complete."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rsipo.problems import UserError

SettingsT = TypeVar("SettingsT", bound="Settings")


class Settings(BaseModel):
    """Base of all settings: immutable, refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def parse(cls: type[SettingsT], values: Mapping[str, Any], *, where: str) -> SettingsT:
        """Build from a plain mapping.

        Args:
            values: setting name to value.
            where: what the message calls the mapping, such as ``check`` or a file.

        Raises:
            UserError: one line for all that is wrong, with the nearest known name for an unknown one.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise UserError("; ".join(cls._explain(detail, where) for detail in error.errors())) from None

    @classmethod
    def _explain(cls, detail: Any, where: str) -> str:
        path = ".".join([where, *map(str, detail["loc"])])
        if detail["type"] == "extra_forbidden":
            return f"{path}: unknown setting{did_you_mean(str(detail['loc'][-1]), cls.model_fields)}"
        given = f" (given: {detail['input']!r})" if detail["loc"] and detail["type"] != "missing" else ""
        return f"{path}: {detail['msg'].removeprefix('Value error, ')}{given}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)``, or the list of known names where none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {near[0]!r}?)" if near else f" (known: {', '.join(names)})"


class CheckSettings(Settings):
    """The execution check and what is estimated from it; exactly the content of ``rsipo-audit/settings.json``."""

    alpha: float = Field(default=0.5, ge=0, le=1)
    """Weight of speed in the utility, eq. (4)."""
    max_turns: int = Field(ge=1)
    """Turn limit of an episode, T_max of eq. (4)."""
    eta: float = Field(default=0.1, gt=0, le=1)
    """Step of the moving averages, eq. (6)."""
    kappa: float = Field(default=2.0, ge=0, allow_inf_nan=False)
    """Slope of the trust, eq. (11)."""
    omega_max: float = Field(default=2.0, ge=0, allow_inf_nan=False)
    """Largest trust, eq. (11)."""
    rho: float = Field(default=0.2, ge=0, allow_inf_nan=False)
    """Penalty of an invalid skill: its reward is ``-rho``. 0 on search."""
    format_reward: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Added to the reward of a valid skill. 0.05 on search."""
    num_rollouts: int = Field(default=8, ge=1)
    """G, student episodes per task; half of them evidence, half control."""
    num_replays: int = Field(default=4, ge=1)
    """K, teacher episodes with the rewritten skill."""


class SkillSettings(Settings):
    """How skills are written and when one counts as valid."""

    temperature: float = Field(default=0.0, ge=0)
    """Of the skill written for every rollout (0 is greedy)."""
    rewrite_temperature: float = Field(default=0.3, ge=0)
    """Of the skill that is rewritten from the evidence trajectory and rewarded."""
    max_tokens: int = Field(default=4096, ge=1)
    """Response budget of an analysis, in tokens."""
    max_prompt_length: int = Field(default=16384, ge=16)
    """Budget of an analysis prompt, in tokens; the oldest turns lose their detail where it would be longer."""
    min_words: int = Field(default=5, ge=1)
    """A shorter skill is invalid."""
    reject_leaks: bool = False
    """Whether a search skill that holds the gold answer is invalid (it is counted either way)."""
    repeat_format: bool = False
    """Whether the output format is restated after the trajectory (small models on search)."""
    prompt_profile: Literal["full", "compact"] = "full"
    """Wording of the analysis prompt; ``compact`` is for the embedded policy."""


class AdvantageSettings(Settings):
    """Group-normalised advantages; see ``verl_ext.advantage``."""

    group_by: Literal["turn", "episode"] = "turn"
    statistics: Literal["reward", "outcome"] = "reward"
    std_floor: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class MethodSettings(Settings):
    """A method is a composition of four choices; RSIPO switches all four on, GRPO none."""

    name: str = "rsipo"
    """Only for logs."""
    teacher_context: Literal["none", "own_skill"] = "own_skill"
    """What the teacher sees beyond the student's prompt."""
    distillation: Literal["none", "gated"] = "gated"
    """Form of the distillation term, eq. (2)."""
    trust: Literal["one", "shrunk_gain"] = "shrunk_gain"
    """Weight of the distillation term, eq. (11)."""
    skill_reward: Literal["none", "replay_gain"] = "replay_gain"
    """Whether writing skills is trained, eq. (8)-(10)."""
    opsd_coefficient: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    """lambda_OPSD of eq. (3) and (13)."""
    gate_sharpness: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    """beta of eq. (2)."""

    @model_validator(mode="after")
    def _parts_fit(self) -> MethodSettings:
        if self.distillation != "none" and self.teacher_context == "none":
            raise ValueError("distillation='gated' needs a teacher: set teacher_context='own_skill'")
        if self.trust != "one" and self.distillation == "none":
            raise ValueError("trust='shrunk_gain' weights nothing without distillation: set trust='one'")
        return self

    @property
    def needs_skills(self) -> bool:
        """Whether a skill is written for every rollout."""
        return self.teacher_context == "own_skill"

    @property
    def needs_check(self) -> bool:
        """Whether tasks go through the execution check (rewrite and replays)."""
        return self.trust == "shrunk_gain" or self.skill_reward == "replay_gain"


class AlgorithmSettings(Settings):
    """All of the above, with the rule that spans them."""

    check: CheckSettings
    method: MethodSettings = MethodSettings()
    skill: SkillSettings = SkillSettings()
    advantage: AdvantageSettings = AdvantageSettings()

    @model_validator(mode="after")
    def _rollouts_split_in_half(self) -> AlgorithmSettings:
        if self.method.needs_check and self.check.num_rollouts % 2:
            raise ValueError(
                f"check.num_rollouts={self.check.num_rollouts} cannot be split into equal evidence and control sets: "
                "use an even number, or a method without the execution check"
            )
        return self
