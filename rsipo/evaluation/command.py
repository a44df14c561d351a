"""The ``rsipo evaluate`` command: from its words to an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rsipo.configuration import nearest
from rsipo.embedded_runs import EMBEDDED_RUNS
from rsipo.evaluation.panel import make_panel, restrict_to_file
from rsipo.evaluation.program import SCRIPTS
from rsipo.evaluation.run import run_evaluation
from rsipo.evaluation.subject import Subject, find_subject
from rsipo.models import read_model
from rsipo.preflight import version_problems
from rsipo.problems import UserError
from rsipo.run_settings import RunSettings
from rsipo.specs import BENCHMARKS, make_spec
from verl_ext.verl_config import check_verl_config


@dataclass(frozen=True, slots=True)
class Options:
    """The command's options; see its help."""

    hf: bool = False
    script: str | None = None
    tasks: int | None = None
    subset: bool = False
    panel: Path | None = None
    out: Path | None = None


def evaluate_command(arguments: Sequence[str], options: Options) -> int:
    """Run ``rsipo evaluate``; returns the exit status.

    Args:
        arguments: ``[ENV [MODEL [STEP]]] [KEY=VALUE ...]``.

    Raises:
        UserError: everything that the user can put right.
    """
    words = [text for text in arguments if "=" not in text and not text.startswith("~")]
    overrides = [text for text in arguments if text not in words]
    if len(words) > 3:
        raise UserError(f"too many words: {' '.join(words)}; the form is [ENV MODEL [STEP]] [KEY=VALUE ...]")
    environment, model, step = (*words, *[None] * 3)[:3]
    environment = environment or BENCHMARKS[0]
    if environment not in BENCHMARKS:
        raise UserError(f"unknown benchmark '{environment}': {nearest(environment, BENCHMARKS)}")
    if step is not None and not step.isdecimal():
        raise UserError(
            f"'{step}' is no training step: give a number, such as 150, or nothing for the newest checkpoint"
        )
    if options.script is not None and options.script not in SCRIPTS:
        raise UserError(f"unknown scripted policy '{options.script}': {nearest(options.script, list(SCRIPTS))}")
    subject = find_subject(
        environment, model, None if step is None else int(step), overrides, hf=options.hf, script=options.script
    )
    with _embedded_data(subject, overrides) as where:
        config = OmegaConf.merge(subject.config, OmegaConf.from_dotlist(where))
        assert isinstance(config, DictConfig)
        _evaluate(replace(subject, config=config), options)
    return 0


@contextmanager
def _embedded_data(subject: Subject, overrides: Sequence[str]) -> Iterator[list[str]]:
    """Make the generated data of an embedded policy and run what they need; gives the overrides that say where."""
    if not subject.embedded:
        yield []
        return
    settings = RunSettings.from_config(subject.config)
    embedded, data = EMBEDDED_RUNS[settings.env.name], Path(settings.env.data_root)
    given = {text.split("=", 1)[0] for text in overrides}
    if subject.checkpoint is None and "env.data_root" not in given:
        embedded.make_data(data)
    with embedded.service(data) if embedded.service_setting not in given else nullcontext([]) as where:
        yield where


def _evaluate(subject: Subject, options: Options) -> None:
    settings = RunSettings.from_config(subject.config)
    if problems := _problems(subject, settings):
        raise UserError("\nrsipo: ".join(problems))
    spec = make_spec(settings.env)
    panel = make_panel(spec, settings.panel, count=options.tasks, any_subset=options.subset)
    if options.panel is not None:
        panel = restrict_to_file(panel, options.panel)
    suffix = f"-tasks{options.tasks}" if options.tasks is not None else "-subset" if panel.subset else ""
    folder = options.out or subject.home / (_folder_name(subject, settings) + suffix)
    run_evaluation(subject, settings, spec, panel, folder)


def _folder_name(subject: Subject, settings: RunSettings) -> str:
    try:
        return settings.panel.folder.format(weights=subject.label, max_turns=settings.env.max_turns)
    except (KeyError, IndexError, ValueError) as error:
        raise UserError(
            f"panel.folder={settings.panel.folder}: only {{weights}} and {{max_turns}} are known"
        ) from error


def _problems(subject: Subject, settings: RunSettings) -> list[str]:
    """What can be found wrong before anything is started."""
    if subject.kind == "script":
        return []  # no model is loaded
    rollout = str(subject.config.actor_rollout_ref.rollout.name)
    problems = version_problems(str(subject.config.trainer.device), rollout)
    facts = read_model(Path(settings.policy.path))
    longest = settings.prompt.max_prompt_length + settings.prompt.max_response_length
    if longest > facts.context_length:
        problems.append(
            f"a turn of {longest} tokens does not fit the context of {facts.context_length}: lower prompt.max_prompt_length "
            "or prompt.max_response_length"
        )
    try:
        check_verl_config(subject.config)
    except ValueError as error:
        problems.append(str(error))
    return problems
