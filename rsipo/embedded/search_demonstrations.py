"""Demonstrations of the scripted searcher, as ``demonstrations`` has them for games.

Per question and repetition: one episode without a skill, the skill written from it, and one episode with that skill. A
procedure makes the player follow the facts; a vague skill leaves it as it was.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from agent_system.environments.base import Environment, EnvironmentSpec, PromptContext, Task
from agent_system.environments.search.projection import answer_of
from agent_system.rollout.types import Episode
from rsipo.embedded.demonstrations import Demonstration, take_turn, turn_demonstrations
from rsipo.embedded.search_player import VAGUE_SKILL, SearchPlayer, is_procedure, parse_question, procedure
from rsipo.prompts import analysis_messages


@dataclass(frozen=True, slots=True)
class SearchBehaviour:
    """How well the scripted searcher plays.

    Attributes:
        noise: chance per turn of a name at random, where the skill is no procedure or there is none.
        guided_noise: the same where it is.
        procedure_share: share of skills that are procedures.
        repetitions: how often each question is demonstrated.
    """

    noise: float = 0.35
    guided_noise: float = 0.04
    procedure_share: float = 0.6
    repetitions: int = 2


def play_question(
    environment: Environment,
    spec: EnvironmentSpec,
    task: Task,
    answer: Callable[[PromptContext], str],
) -> Episode:
    """One episode in which ``answer`` responds to every turn. Token ids are not kept."""
    start = environment.reset(task)
    episode = Episode(task.task_id, 0, "ok", False, [], start.fingerprint, start.instruction)
    context = PromptContext(start.instruction, start.observation)
    while episode.num_turns < spec.max_turns:
        text = answer(context)
        action = spec.project(text)
        context = take_turn(environment, episode, context, action.text, text, valid=action.valid)
        if answer_of(action.text) is not None:
            break
    return episode


def demonstrate_questions(
    environment: Environment,
    spec: EnvironmentSpec,
    tasks: Sequence[Task],
    *,
    behaviour: SearchBehaviour | None = None,
    seed: int = 0,
) -> Iterator[Demonstration]:
    """All demonstrations of these questions. Each depends on the seed, its question and its repetition only."""
    how = behaviour or SearchBehaviour()
    for task in tasks:
        for repetition in range(how.repetitions):
            rng = random.Random(f"{seed}/{task.task_id}/{task.sha256}/{repetition}")
            yield from _demonstrate_once(environment, spec, task, how, rng)


def _demonstrate_once(
    environment: Environment, spec: EnvironmentSpec, task: Task, how: SearchBehaviour, rng: random.Random
) -> Iterator[Demonstration]:
    plain = play_scripted(environment, spec, task, rng, how.noise)
    yield from turn_demonstrations("student", plain, lambda context: spec.messages(context))

    kind = parse_question(plain.instruction).kind
    skill = procedure(kind) if rng.random() < how.procedure_share else VAGUE_SKILL
    summary = f"{'done' if plain.success else 'failed'}: {plain.instruction}"
    answer = json.dumps({"episode_summary": summary, "episode_skill": skill})
    yield Demonstration("analysis", analysis_messages(plain, benchmark="search", profile="compact"), answer)

    noise = how.guided_noise if is_procedure(skill) else how.noise
    guided = play_scripted(environment, spec, task, rng, noise)
    yield from turn_demonstrations("teacher", guided, lambda context: spec.messages(context, skill=skill))


def play_scripted(
    environment: Environment, spec: EnvironmentSpec, task: Task, rng: random.Random, noise: float
) -> Episode:
    """Let the scripted searcher play one episode."""
    player = SearchPlayer(parse_question(str(task.extra["question"])), rng, noise)
    return play_question(
        environment,
        spec,
        task,
        lambda context: player.act(context.observation.text, last_turn=context.step == spec.max_turns),
    )
