"""Everything that can be found wrong with a run before a worker starts, each as one clear line."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from agent_system.environments.base import EnvironmentFault, Task
from rsipo.configuration import nearest
from rsipo.models import PUBLISHED, ModelFacts, model_folder, read_model
from rsipo.plan import GIB, Plan, free_disk_check, make_plan
from rsipo.problems import UserError
from rsipo.run_files import RunFiles
from rsipo.run_settings import RunSettings, SearchSection
from rsipo.specs import make_spec
from verl_ext.verl_config import check_verl_config

_GPU_VERSIONS = {"verl": "0.9.1", "torch": "2.11.0", "transformers": "5.9.0", "vllm": "0.24.0", "ray": "2.60.0"}
#: What each kind of device needs: distribution -> exact version. These are the versions that were run together.
SUPPORTED = {
    "cpu": {"verl": "0.9.1", "torch": "2.13.0", "transformers": "5.9.0", "tensordict": "0.10.0", "ray": "2.60.0"},
    "cuda": _GPU_VERSIONS,
}
#: The same on a CPU with vLLM's servers: the GPU versions (vllm-cpu goes by the name of vllm).
SUPPORTED_VLLM_CPU = _GPU_VERSIONS | {"tensordict": "0.10.0"}
_SHARED_MEMORY_GIB = 0.25


def inspect(
    config: DictConfig, settings: RunSettings, model_name: str, *, data_made_later: bool = False
) -> tuple[Plan | None, list[str]]:
    """The plan of a run and every problem that would stop it. Starts nothing.

    ``data_made_later``: the tasks will be generated before the start, so their absence is no problem.
    """
    problems = _device_problems(config)
    if problems:
        return None, problems
    rollout = str(config.actor_rollout_ref.rollout.name)
    problems = version_problems(str(config.trainer.device), rollout) + _tracker_problems(settings.logging.trackers)
    model, model_problem = _model(settings, model_name)
    problems += [model_problem] if model_problem else []
    problems += [] if data_made_later else load_tasks(settings)[2] + retriever_problems(settings)
    problems += _run_folder_problems(settings) + _saved_rollout_problems(settings)
    if model is None:
        return None, problems
    problems += verl_problems(config)
    plan = make_plan(config, settings, model)
    copies = (settings.training.keep_checkpoints or settings.training.steps) + 1
    plan.checks.append(free_disk_check(Path(settings.run.directory), copies * model.parameters * 12 / GIB))
    return plan, problems + plan.problems()


def version_problems(device: str, rollout: str = "cpu") -> list[str]:
    """Installed versions that differ from the supported ones of a device and a rollout backend."""
    if (device, rollout) == ("cpu", "vllm"):
        if importlib.util.find_spec("vllm") is None:
            return ["vLLM for CPUs is not installed in this environment: bash scripts/setup_vllm_cpu.sh makes one"]
        supported = SUPPORTED_VLLM_CPU
    else:
        supported = SUPPORTED.get(device, SUPPORTED["cuda"])
    problems = []
    for name, wanted in supported.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(
                f"{name} {wanted} is needed for device '{device}' and is not installed; see README, Installation"
            )
            continue
        if found.split("+")[0] != wanted:
            problems.append(
                f"{name} {found} is installed, {wanted} is supported; RSIPO_ANY_VERSION=1 tries it all the same"
            )
    return [] if os.environ.get("RSIPO_ANY_VERSION") == "1" else problems


def verl_problems(config: DictConfig) -> list[str]:
    """What of veRL's configuration would fail in a worker, or be ignored without a word."""
    try:
        check_verl_config(config)
    except ValueError as error:
        return [str(error)]
    return []


def hardware_profile() -> str:
    """The profile for the GPUs of this machine; for what is played or fine-tuned without a word about hardware."""
    import torch

    gpus = torch.cuda.device_count()
    return "8xgpu" if gpus >= 8 else "1xgpu" if gpus else "cpu"


def _device_problems(config: DictConfig) -> list[str]:
    """Devices that do not exist, and what veRL could not do with them; nothing else can be planned then."""
    trainer, sizes = config.trainer, config.actor_rollout_ref.rollout
    if trainer.device not in SUPPORTED:
        return [f"trainer.device={trainer.device}: {nearest(str(trainer.device), list(SUPPORTED))}"]
    numbers = {"trainer.n_gpus_per_node": trainer.n_gpus_per_node, "trainer.nnodes": trainer.nnodes} | {
        f"actor_rollout_ref.rollout.{name}": sizes[name]
        for name in ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
    }
    problems = [f"{name}={value}: must be a whole number of at least 1" for name, value in numbers.items()
                if not isinstance(value, int) or value < 1]  # fmt: skip
    if trainer.nnodes != 1 and config.hardware.ray_address == "local":
        problems += [f"trainer.nnodes={trainer.nnodes}: several nodes need a Ray cluster that is there already; start one "
                     "(scripts/cluster) and set RSIPO_RAY_ADDRESS"]  # fmt: skip
    if trainer.device == "cpu" and sizes.name not in ("cpu", "vllm"):
        problems += [f"actor_rollout_ref.rollout.name={sizes.name}: on a CPU the rollout server is 'cpu' or 'vllm'"]
    return problems


def _tracker_problems(names: Sequence[str]) -> list[str]:
    known = {name: name for name in ("wandb", "mlflow", "swanlab", "tensorboard", "clearml", "trackio", "rl_insight")}
    known |= {"vemlp_wandb": "volcengine_ml_platform", "console": "", "file": ""}  # veRL's name -> the package it needs
    problems = []
    for name in names:
        if name not in known:
            problems.append(f"logging.trackers: unknown tracker '{name}': {nearest(name, list(known))}")
        elif known[name] and importlib.util.find_spec(known[name]) is None:
            problems.append(f"logging.trackers: '{name}' needs its package: pip install {known[name]}")
    return problems


def load_tasks(settings: RunSettings) -> tuple[list[Task], list[Task], list[str]]:
    """Training tasks, held-out tasks, and what is wrong with either."""
    spec, problems = make_spec(settings.env), []
    found: dict[str, list[Task]] = {}
    evaluated = settings.evaluation.every or settings.evaluation.at_start or settings.evaluation.at_end
    found[settings.evaluation.split] = []
    for split in {settings.env.train_split, *([settings.evaluation.split] if evaluated else [])}:
        try:
            found[split] = list(spec.tasks(split))
        except (OSError, ValueError, EnvironmentFault) as error:
            found[split] = []
            problems.append(str(error))
    training = found[settings.env.train_split]
    if settings.env.task_types is not None:
        known = {task.task_type for task in training}
        if unknown := sorted(set(settings.env.task_types) - known):
            problems.append(
                f"env.task_types: no task of type {', '.join(unknown)}; there are {', '.join(sorted(known))}"
            )
        training = [task for task in training if task.task_type in settings.env.task_types]
    if training and len(training) < settings.training.tasks_per_step:
        problems.append(
            f"{len(training)} training tasks for training.tasks_per_step={settings.training.tasks_per_step}: lower it or "
            "add tasks"
        )
    return training, found[settings.evaluation.split], problems


def retriever_problems(settings: RunSettings) -> list[str]:
    """Replicas of the retriever that do not answer a search."""
    env = settings.env
    if not isinstance(env, SearchSection) or settings.debug.load_rollouts is not None:
        return []
    from agent_system.retrieval.client import RetrieverClient
    from agent_system.retrieval.types import RetrievalError

    problems = []
    for url in env.retriever_urls:
        try:
            client = RetrieverClient([url], timeout_s=env.retrieval_timeout, max_attempts=2)
        except ValueError as error:
            problems.append(f"env.retriever_urls: {error}")
            continue
        try:
            client.search_sync(["retriever"], env.top_k)
        except RetrievalError as error:
            problems.append(
                f"no retriever: {error}; start one with `bash scripts/rsipo/start_retriever.sh`, or set env.retriever_urls"
            )
        finally:
            client.close()
    return problems


def _model(settings: RunSettings, name: str) -> tuple[ModelFacts | None, str | None]:
    try:
        path = Path(settings.policy.path)
        if not path.is_dir():
            raise UserError(f"policy.path={path} is no folder; write policy.path={model_folder(name)}")
        return read_model(path), None
    except UserError as error:
        published = next((facts for marker, facts in PUBLISHED.items() if marker in name.lower()), None)
        return published, str(error)


def _saved_rollout_problems(settings: RunSettings) -> list[str]:
    """Training on saved rollouts: are there the files of all steps, and nothing to be played or saved?"""
    folder, evaluation = settings.debug.load_rollouts, settings.evaluation
    if folder is None:
        return []
    from rsipo.saved_rollouts import step_path

    problems = []
    if not any(Path(folder).glob("step-*.jsonl.gz")):
        problems.append(
            f"debug.load_rollouts={folder} holds no step-*.jsonl.gz: a run with debug.save_rollouts=true writes them"
        )
    elif missing := [step for step in _steps_to_train(settings) if not step_path(Path(folder), step).is_file()]:
        problems.append(
            f"debug.load_rollouts={folder}: {step_path(Path(folder), missing[0]).name} is missing ({len(missing)} of the steps "
            "to train): lower training.steps, or save more"
        )
    if settings.debug.save_rollouts:
        problems.append(
            "debug.save_rollouts=true: nothing is played that could be saved; leave it or load_rollouts out"
        )
    if evaluation.at_start or evaluation.at_end or evaluation.every:
        problems.append(
            "debug.load_rollouts plays nothing, so there is no evaluation: set evaluation.at_start=false "
            "evaluation.at_end=false evaluation.every=0"
        )
    return problems


def _steps_to_train(settings: RunSettings) -> range:
    from verl_ext.checkpoint import CheckpointStore

    store = CheckpointStore(RunFiles(Path(settings.run.directory)).checkpoints, None)
    latest = store.latest() if settings.run.resume == "auto" else None
    return range(latest[0] + 1 if latest else 1, settings.training.steps + 1)


def _run_folder_problems(settings: RunSettings) -> list[str]:
    files = RunFiles(Path(settings.run.directory))
    existing = next(path for path in [files.root, *files.root.absolute().parents] if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return [f"the run folder {files.root} cannot be written ({existing}): point RSIPO_WORK elsewhere"]
    if settings.run.resume == "never" and files.is_used():
        return [
            f"{files.root} holds a run already: RSIPO_RESUME_MODE=auto resumes it, run.name=NAME starts another, or remove it"
        ]
    return []
