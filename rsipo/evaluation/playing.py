"""What must hold, and be there, before a policy can play: for evaluations, single rollouts and the data of stage 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from rsipo.embedded_runs import EMBEDDED_RUNS
from rsipo.evaluation.subject import Subject
from rsipo.models import read_model
from rsipo.plan import unchunked
from rsipo.preflight import verl_problems, version_problems
from rsipo.problems import UserError
from rsipo.run_settings import RunSettings

#: Override for ``play_as_in_training``: a panel has its own number of turns.
TRAINING_TURNS = "panel.max_turns=null"


def play_as_in_training(subject: Subject, split: str, seeds: Sequence[int]) -> None:
    """Make the panel of ``subject`` the tasks of ``split``, a round per seed, at the temperature of training.

    The number of turns is that of training where the subject was composed with ``TRAINING_TURNS``.
    """
    OmegaConf.update(subject.config, "panel.splits", {split: None}, merge=False, force_add=True)
    subject.config.panel.seeds = list(seeds)
    subject.config.panel.temperature = subject.config.training.temperature


@contextmanager
def with_data(subject: Subject, overrides: Sequence[str]) -> Iterator[Subject]:
    """The subject with its data: those of an embedded policy are made, and the service they need runs in the block."""
    if not subject.embedded:
        yield subject
        return
    embedded, data = EMBEDDED_RUNS[str(subject.config.env.name)], Path(str(subject.config.env.data_root))
    with embedded.ready(data, overrides, make=subject.checkpoint is None) as where:
        config = OmegaConf.merge(subject.config, OmegaConf.from_dotlist(where))
        assert isinstance(config, DictConfig)
        yield replace(subject, config=config)


def check_playable(subject: Subject, settings: RunSettings) -> None:
    """What can be found wrong before anything is started.

    Raises:
        UserError: software of the wrong version, a context that is too short, sizes that do not go together.
    """
    if subject.kind == "script":
        return  # no model is loaded
    problems = version_problems(str(subject.config.trainer.device), str(subject.config.actor_rollout_ref.rollout.name))
    context = read_model(Path(settings.policy.path)).context_length
    if (longest := settings.prompt.max_prompt_length + settings.prompt.max_response_length) > context:
        problems.append(
            f"a turn of {longest} tokens does not fit the context of {context}: lower prompt.max_prompt_length "
            "or prompt.max_response_length"
        )
    problems += [f"{check.rule}: {check.remedy}" for check in unchunked(subject.config, context) if not check.holds]
    problems += verl_problems(subject.config)
    if problems:
        raise UserError("\nrsipo: ".join(problems))
