"""The ``rsipo evaluate`` command: from its words to an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rsipo.configuration import nearest
from rsipo.evaluation.panel import make_panel, restrict_to_file
from rsipo.evaluation.playing import check_playable, with_data
from rsipo.evaluation.program import SCRIPTS
from rsipo.evaluation.run import run_evaluation
from rsipo.evaluation.subject import Subject, find_subject
from rsipo.problems import UserError
from rsipo.run_settings import RunSettings
from rsipo.specs import BENCHMARKS, make_spec


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
    subject, overrides = read_words(arguments, hf=options.hf, script=options.script)
    with with_data(subject, overrides) as ready:
        _evaluate(ready, options)
    return 0


def read_words(
    arguments: Sequence[str], *, hf: bool, script: str | None, more: Sequence[str] = ()
) -> tuple[Subject, list[str]]:
    """What ``[ENV [MODEL [STEP]]] [KEY=VALUE ...]`` names, and the overrides among them; ``more`` overrides come last.

    Raises:
        UserError: a word that means nothing, with the nearest that does.
    """
    words = [text for text in arguments if "=" not in text and not text.startswith("~")]
    overrides = [*(text for text in arguments if text not in words), *more]
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
    if script is not None and script not in SCRIPTS:
        raise UserError(f"unknown scripted policy '{script}': {nearest(script, list(SCRIPTS))}")
    number = None if step is None else int(step)
    return find_subject(environment, model, number, overrides, hf=hf, script=script), overrides


def _evaluate(subject: Subject, options: Options) -> None:
    settings = RunSettings.from_config(subject.config)
    check_playable(subject, settings)
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
