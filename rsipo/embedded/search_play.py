"""Ask a small policy generated questions in this process, without Ray or veRL: for measuring a warm start, and for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from agent_system.environments.base import Environment, EnvironmentSpec, PromptContext, Task
from agent_system.environments.search.projection import answer_of
from agent_system.rollout.types import Episode
from rsipo.embedded.demonstrations import take_turn
from rsipo.embedded.play import Policy
from rsipo.embedded.search_player import is_procedure
from rsipo.prompts import analysis_messages
from rsipo.settings import SkillSettings
from rsipo.skills import read_skill


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
    environments = [make() for _ in tasks]
    skills = skills or [None] * len(tasks)
    contexts: list[PromptContext] = []
    episodes: list[Episode] = []
    for environment, task in zip(environments, tasks, strict=True):
        start = environment.reset(task)
        contexts.append(PromptContext(start.instruction, start.observation))
        episodes.append(Episode(task.task_id, 0, "ok", False, [], start.fingerprint, start.instruction))
    running = list(range(len(tasks)))
    for _ in range(spec.max_turns):
        prompts = [spec.messages(contexts[i], skill=skills[i]) for i in running]
        answers = policy.answer(prompts, temperature=temperature, max_tokens=max_tokens)
        asked, running = running, []
        for i, answer in zip(asked, answers, strict=True):
            action = spec.project(answer or "")
            contexts[i] = take_turn(
                environments[i], episodes[i], contexts[i], action.text, answer or "", valid=action.valid
            )
            if answer_of(action.text) is None:
                running.append(i)
    return episodes


def write_search_skills(
    policy: Policy, episodes: Sequence[Episode], *, temperature: float = 0.3, max_tokens: int = 64
) -> list[str | None]:
    """The skill the policy writes from each episode; None where it is not valid."""
    prompts = [analysis_messages(e, benchmark="search", profile="compact") for e in episodes]
    answers = policy.answer(prompts, temperature=temperature, max_tokens=max_tokens)
    skills = [read_skill(a or "", finished=a is not None, settings=SkillSettings()) for a in answers]
    return [skill.text if skill.valid else None for skill in skills]


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
    skills = write_search_skills(policy, student, temperature=skill_temperature)
    chosen = [i for i, skill in enumerate(skills) if skill]
    teacher = play_questions(
        policy, spec, make, [tasks[i] for i in chosen], skills=[skills[i] for i in chosen], temperature=temperature
    )
    guided = [episode.success for episode in student]
    for i, episode in zip(chosen, teacher, strict=True):
        guided[i] = episode.success
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
        valid_skill=len(chosen) / len(tasks),
        procedure_skill=fmean(is_procedure(skill or "") for skill in skills),
    )
