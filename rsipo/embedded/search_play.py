"""Ask a small policy generated questions in this process, without Ray or veRL: for measuring a warm start, and for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from agent_system.environments.base import Environment, EnvironmentSpec, Task
from agent_system.environments.search.projection import answer_of
from agent_system.rollout.types import Episode
from rsipo.embedded.play import Policy, guided_successes, play_in_lockstep, write_skills
from rsipo.embedded.search_player import is_procedure

SKILL_TOKENS = 64


@dataclass(frozen=True, slots=True)
class SearchMeasurement:
    """What a policy does on a set of questions; every field but ``questions`` is a share between 0 and 1.

    ``student`` and ``teacher`` are exact matches; the teacher plays with the skill that was written from the student's
    episode, and a question without a valid skill counts as the student's result.
    """

    questions: int
    student: float
    student_onehop: float
    student_twohop: float
    teacher: float
    valid_format: float
    valid_skill: float
    procedure_skill: float


def play_questions(
    policy: Policy,
    spec: EnvironmentSpec,
    make: Callable[[], Environment],
    tasks: Sequence[Task],
    *,
    skills: Sequence[str | None] | None = None,
    temperature: float = 1.0,
    max_tokens: int = 24,
) -> list[Episode]:
    """Ask all questions in lockstep, each with its skill where it has one; ``make`` makes a slot."""
    return play_in_lockstep(
        policy,
        spec,
        [make() for _ in tasks],
        tasks,
        skills=skills,
        temperature=temperature,
        max_tokens=max_tokens,
        played=lambda action: action.text,
        is_over=lambda action, episode: answer_of(action) is not None,
    )


def measure_search(
    policy: Policy,
    spec: EnvironmentSpec,
    make: Callable[[], Environment],
    tasks: Sequence[Task],
    *,
    temperature: float = 1.0,
    skill_temperature: float = 0.3,
    seed: int = 0,
) -> SearchMeasurement:
    """Play, write skills, play again with them. Reproducible for a seed."""
    torch.manual_seed(seed)
    student = play_questions(policy, spec, make, tasks, temperature=temperature)
    skills = write_skills(policy, student, benchmark="search", temperature=skill_temperature, max_tokens=SKILL_TOKENS)
    guided = guided_successes(
        student,
        skills,
        tasks,
        lambda some, with_skills: play_questions(policy, spec, make, some, skills=with_skills, temperature=temperature),
    )
    turns = [turn for episode in student for turn in episode.turns]
    by_type = {
        name: [episode.success for episode, task in zip(student, tasks, strict=True) if task.task_type == name]
        for name in ("onehop", "twohop")
    }
    return SearchMeasurement(
        questions=len(tasks),
        student=fmean(episode.success for episode in student),
        student_onehop=fmean(by_type["onehop"]),
        student_twohop=fmean(by_type["twohop"]),
        teacher=fmean(guided),
        valid_format=fmean(turn.action_valid for turn in turns),
        valid_skill=fmean(bool(skill) for skill in skills),
        procedure_skill=fmean(is_procedure(skill or "") for skill in skills),
    )
