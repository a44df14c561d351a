"""What is evaluated: a run's checkpoint, a Hugging Face folder or a scripted policy, with the configuration to play it by."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rsipo.configuration import compose_run, nearest
from rsipo.embedded_runs import EMBEDDED_RUNS
from rsipo.launch import Request, request_overrides
from rsipo.models import model_folder, policy_files, policy_sha256, read_model
from rsipo.preflight import hardware_profile
from rsipo.problems import UserError
from rsipo.run_files import RunFiles
from verl_ext.checkpoint import CheckpointStore

_HF_HINT = "RSIPO_EVAL_HF=1 (or --hf) evaluates a Hugging Face folder under MODELS_ROOT"


@dataclass(frozen=True)
class Subject:
    """A policy and how it is played.

    Attributes:
        kind: ``checkpoint``, ``hf`` or ``script``.
        name: of the run, the model folder or the script.
        config: the resolved configuration.
        home: the folder that gets the evaluation's folder.
        weights: every file that decides what the policy answers.
        checkpoint: the actor's folder in the checkpoint to load over the model folder.
        step: the checkpoint's training step.
        embedded: it is the benchmark's embedded policy, and plays the data generated for it.
    """

    kind: str
    name: str
    config: DictConfig
    home: Path
    weights: tuple[Path, ...]
    checkpoint: Path | None = None
    step: int | None = None
    embedded: bool = False

    @property
    def label(self) -> str:
        """The weights in the evaluation folder's name: ``step150``, ``hf``, or the script's name."""
        return f"step{self.step}" if self.kind == "checkpoint" else self.name if self.kind == "script" else "hf"

    def identity(self, progress: Callable[[int, int], None]) -> dict[str, Any]:
        """What is evaluated, with the hash of its files; ``progress`` as of ``policy_sha256``."""
        sha256 = policy_sha256(self.weights, progress) if self.weights else None
        return {"kind": self.kind, "name": self.name, "step": self.step, "sha256": sha256}


def find_subject(
    environment: str, model: str | None, step: int | None, overrides: Sequence[str], *, hf: bool, script: str | None
) -> Subject:
    """What the command's words mean.

    Raises:
        UserError: no such run, checkpoint or folder, with the nearest name; or words that do not go together.
    """
    if (hf or script) and step is not None:
        raise UserError(f"a {'scripted policy' if script else 'Hugging Face folder'} has no step: leave '{step}' out")
    if script is not None:
        return _script(environment, model, script, overrides)
    if hf:
        return _hugging_face(environment, model, overrides)
    return _checkpoint(environment, model, step, overrides)


def _hugging_face(environment: str, model: str | None, overrides: Sequence[str]) -> Subject:
    config, embedded = _composed(environment, model, overrides)
    path = Path(str(config.policy.path))
    if not path.is_dir():
        path = model_folder(str(path))  # says what is missing
    read_model(path)
    name = path.name
    home = Path(str(config.run.work_dir)) / "evaluations" / f"{name}-{environment}"
    return Subject("hf", name, _for_playing(config), home, policy_files(path), embedded=embedded)


def _script(environment: str, model: str | None, script: str, overrides: Sequence[str]) -> Subject:
    """A scripted policy needs a tokenizer only: the model's, if one is named, else the embedded policy's."""
    given = [] if model or _given(overrides, "policy.path") else [_path(EMBEDDED_RUNS[environment].policy)]
    given += [] if _given(overrides, "hardware") else ["hardware=cpu"]
    config, embedded = _composed(environment, model or "script", [*given, *overrides])
    # Any budget fits, whatever the tokenizer makes of the text: no model reads these prompts.
    OmegaConf.update(config, "prompt.max_prompt_length", 1 << 20)
    OmegaConf.update(config, "prompt.max_response_length", 1 << 10)
    home = Path(str(config.run.work_dir)) / "evaluations" / f"script-{environment}"
    return Subject("script", script, _for_playing(config), home, (), embedded=embedded)


def _checkpoint(environment: str, model: str | None, step: int | None, overrides: Sequence[str]) -> Subject:
    files = _find_run(environment, model)
    store = CheckpointStore(files.checkpoints, keep=None)
    steps = dict(store.complete())
    if not steps:
        raise UserError(f"{files.root} holds no complete checkpoint yet; {_HF_HINT}")
    chosen = max(steps) if step is None else step
    if chosen not in steps:
        known = ", ".join(str(number) for number in sorted(steps))
        raise UserError(f"{files.root} holds no complete checkpoint of step {chosen}; there are: {known}")
    actor = steps[chosen] / "actor"
    config = _run_config(files, environment, overrides)
    base = Path(str(config.policy.path))
    weights = tuple(sorted(actor.glob("model_world_size_*.pt"))) + policy_files(base, weights=False)
    return Subject(
        "checkpoint", files.root.name, _for_playing(config), files.root, weights, actor, chosen, _is_embedded(config)
    )


def _find_run(environment: str, model: str | None) -> RunFiles:
    """A run by its folder, by the model's name, or by its own name; without a name the newest embedded run."""
    runs = Path(os.environ.get("RSIPO_WORK", "outputs")) / "runs"
    if model is None:
        name = EMBEDDED_RUNS[environment].name
        candidates = sorted(runs.glob(f"{name}*"), key=lambda path: _number(path, name), reverse=True)
    else:
        name = f"rsipo-{Path(model).name}-{environment}"
        candidates = [Path(model), runs / name, runs / model]
    for path in candidates:
        if RunFiles(path).config.is_file():
            return RunFiles(path)
    known = sorted(path.name for path in runs.glob("*") if RunFiles(path).config.is_file())
    raise UserError(f"no run {name} in {runs}: {nearest(name, known)}; {_HF_HINT}")


def _number(path: Path, name: str) -> int:
    """1 for ``NAME``, 2 for ``NAME-2``; 0 for any other name."""
    suffix = path.name.removeprefix(name) or "-1"
    return int(suffix[1:]) if suffix[0] == "-" and suffix[1:].isdecimal() else 0


def _run_config(files: RunFiles, environment: str, overrides: Sequence[str]) -> DictConfig:
    """The run's own configuration, as it was trained, with what was overridden now.

    What configurations have got since comes from today's defaults.
    """
    try:
        saved = OmegaConf.load(files.config)
        assert isinstance(saved, DictConfig)
        name, path = str(saved.env.name), str(saved.policy.path)
    except Exception as error:  # YAML and OmegaConf have no common base
        raise UserError(f"{files.config} is no configuration of a run ({str(error).splitlines()[0]})") from error
    if name != environment:
        raise UserError(f"run {files.root} was trained on '{name}', not on '{environment}'")
    if groups := [text for text in overrides if text.split("=", 1)[0] in _GROUPS - {"panel"}]:
        raise UserError(
            f"{groups[0]}: a checkpoint is played as it was trained; override single settings, as env.data_root=…"
        )
    recipe = _recipe(environment, embedded=_is_embedded(saved))
    base = [f"env={environment}", f"recipe={recipe}", _path(path), "run.name=evaluation"]
    base += [] if _given(overrides, "panel") else [f"panel={recipe}"]
    fresh = compose_run([*base, *overrides])
    OmegaConf.set_struct(fresh, False)
    config = OmegaConf.merge(fresh, saved)
    assert isinstance(config, DictConfig)
    config.panel = fresh.panel
    config.hardware.ray_address = fresh.hardware.ray_address
    if not Path(str(config.env.data_root)).is_dir():  # the run was made on another machine
        config.env.data_root = fresh.env.data_root
    if not Path(path).is_dir():
        config.policy.path = str(model_folder(Path(path).name))
    for text in overrides:
        key = text.split("=", 1)[0].lstrip("+~")
        if "." in key:
            OmegaConf.update(config, key, OmegaConf.select(fresh, key), force_add=True)
    return config


_GROUPS = {"env", "family", "hardware", "method", "panel", "recipe"}


def _composed(environment: str, model: str | None, overrides: Sequence[str]) -> tuple[DictConfig, bool]:
    """The configuration of a model that no run has trained here, and whether it is the embedded policy."""
    shipped = EMBEDDED_RUNS[environment].policy.name
    embedded = model is None or (model == shipped and not _is_folder(model))
    chosen = [] if _given(overrides, "panel") else [f"panel={_recipe(environment, embedded=embedded)}"]
    chosen += [] if embedded or _given(overrides, "hardware") else [f"hardware={hardware_profile()}"]
    request = Request(environment, None if embedded else model, (*chosen, *overrides))
    return compose_run(request_overrides(request)), embedded


def _recipe(environment: str, *, embedded: bool) -> str:
    """The recipe, and the panel of the same name."""
    return EMBEDDED_RUNS[environment].recipe if embedded else environment


def _is_folder(name: str) -> bool:
    try:
        model_folder(name)
    except UserError:
        return False
    return True


def _for_playing(config: DictConfig) -> DictConfig:
    """What only training needs is left out: the reference policy, the optimizer's state, room for analyses."""
    OmegaConf.set_struct(config, False)
    changes: dict[str, Any] = {
        "training.kl_coefficient": 0.0,
        "actor_rollout_ref.actor.kl_loss_coef": 0.0,
        "actor_rollout_ref.actor.use_kl_loss": False,
        "actor_rollout_ref.actor.checkpoint.load_contents": ["model"],
        "actor_rollout_ref.model.path": config.policy.path,
        "actor_rollout_ref.rollout.prompt_length": config.prompt.max_prompt_length,
        "actor_rollout_ref.rollout.response_length": config.prompt.max_response_length,
        "env.max_turns": config.panel.max_turns or config.env.max_turns,
        "check.max_turns": config.panel.max_turns or config.env.max_turns,
        # A task is one episode here, not a group of them: as many at once as there are environment slots.
        "workers.concurrent_tasks": int(config.workers.env_hosts) * int(config.workers.slots_per_host),
    }
    for key, value in changes.items():
        OmegaConf.update(config, key, value, force_add=True)
    return config


def _is_embedded(config: DictConfig) -> bool:
    return Path(str(config.policy.path)).name == EMBEDDED_RUNS[str(config.env.name)].policy.name


def _given(overrides: Sequence[str], name: str) -> bool:
    return any(text.split("=", 1)[0] == name for text in overrides)


def _path(path: Path | str) -> str:
    return f"policy.path='{path}'"
