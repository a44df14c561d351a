"""Demonstrations of the scripted player: what a warm start learns from.

Per game and repetition: one episode without a skill, the skill written from it, and one episode with that skill. A
skill that names locations makes the player direct; a vague one leaves it as it was. So a policy trained on them reads
skills, writes both kinds, and has something to improve.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from agent_system.environments.alfworld.projection import INVALID_ACTION
from agent_system.environments.base import Environment, EnvironmentSpec, Observation, PromptContext, Task
from agent_system.rollout.types import Episode, Generation, Turn
from rsipo.embedded import formats
from rsipo.embedded.player import ScriptedPlayer, parse_goal
from rsipo.prompts import Messages, analysis_messages

Kind = Literal["student", "analysis", "teacher"]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One training sample: chat messages and the answer to give."""

    kind: Kind
    messages: Messages
    answer: str


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How well the scripted player plays.

    Attributes:
        noise: chance per turn of a random action, where the skill names no location or there is none.
        guided_noise: the same where it does.
        blunders: chance per turn of an inadmissible action beforehand; it stays in the history and is not trained on,
            so that the policy learns to recover from "Nothing happens.".
        location_share: share of skills that name locations, where the episode saw any.
        repetitions: how often each game is demonstrated.
    """

    noise: float = 0.3
    guided_noise: float = 0.03
    blunders: float = 0.08
    location_share: float = 0.6
    repetitions: int = 4


# Places that many rooms have, to blunder with.
_STRANGERS = ("shelf 1", "drawer 1", "cabinet 2", "countertop 1", "fridge 1", "desk 1", "sidetable 1", "drawer 3",
              "garbagecan 1", "sinkbasin 1", "sofa 1")  # fmt: skip


def play(
    environment: Environment,
    task: Task,
    max_turns: int,
    rng: random.Random,
    *,
    noise: float,
    known: Mapping[str, str] | None = None,
    blunders: float = 0.0,
) -> Episode:
    """Let the scripted player play one episode. A blunder is a turn like any other, but without a response text."""
    start = environment.reset(task)
    player = ScriptedPlayer(parse_goal(start.instruction), rng, noise, known or {})
    episode = Episode(task.task_id, 0, "ok", False, [], start.fingerprint, start.instruction, start.observation.text)
    context = PromptContext(start.instruction, start.observation)
    blundered = False
    while not episode.success and episode.num_turns < max_turns:
        blunder = _blunder(player, context.observation) if not blundered and rng.random() < blunders else None
        blundered = blunder is not None
        if blunder:
            action, text = blunder, ""
        else:
            thought, action = player.act(context.observation)
            text = formats.response(thought, action)
        context = take_turn(environment, episode, context, action, text)
    return episode


def take_turn(
    environment: Environment, episode: Episode, context: PromptContext, action: str, text: str, *, valid: bool = True
) -> PromptContext:
    """Take one turn and record it; returns the next turn's context. Token ids are not kept."""
    result = environment.step(action)
    none = np.empty(0, dtype=np.int32)
    generation = Generation(none, none, np.empty(0, dtype=np.float32), text, finished=True)
    episode.turns.append(Turn(context, generation, action, valid, result.admissible))
    episode.success, episode.final_observation = result.success, result.observation.text
    history = (*context.history, (context.observation.text, action))
    return PromptContext(context.instruction, result.observation, history)


def demonstrate(
    environment: Environment,
    spec: EnvironmentSpec,
    tasks: Sequence[Task],
    *,
    behaviour: Behaviour | None = None,
    seed: int = 0,
) -> Iterator[Demonstration]:
    """All demonstrations of these games. Each depends on the seed, its game and its repetition only."""
    how = behaviour or Behaviour()
    for task in tasks:
        for repetition in range(how.repetitions):
            rng = random.Random(f"{seed}/{task.task_id}/{repetition}")
            yield from _demonstrate_once(environment, spec, task, how, rng)


def _demonstrate_once(
    environment: Environment, spec: EnvironmentSpec, task: Task, how: Behaviour, rng: random.Random
) -> Iterator[Demonstration]:
    plain = play(environment, task, spec.max_turns, rng, noise=how.noise, blunders=how.blunders)
    yield from turn_demonstrations("student", plain, lambda context: spec.messages(context))

    skill = _choose_skill(plain, how, rng)
    answer = formats.analysis(plain.instruction, skill, success=plain.success)
    yield Demonstration("analysis", analysis_messages(plain, benchmark="alfworld", profile="compact"), answer)

    known = formats.locations(skill)
    noise = how.guided_noise if known else how.noise
    guided = play(environment, task, spec.max_turns, rng, noise=noise, known=known, blunders=how.blunders)
    yield from turn_demonstrations("teacher", guided, lambda context: spec.messages(context, skill=skill))


def turn_demonstrations(
    kind: Kind, episode: Episode, messages: Callable[[PromptContext], Messages]
) -> Iterator[Demonstration]:
    """One for every turn in which something was said; ``messages`` makes a turn's prompt."""
    for turn in episode.turns:
        if turn.generation.text:
            yield Demonstration(kind, messages(turn.context), turn.generation.text)


def _choose_skill(episode: Episode, how: Behaviour, rng: random.Random) -> str:
    goal = parse_goal(episode.instruction)
    seen = [*(turn.context.observation.text for turn in episode.turns), episode.final_observation]
    skill = formats.location_skill(goal, seen) if rng.random() < how.location_share else None
    return skill or formats.vague_skill(goal)


def _blunder(player: ScriptedPlayer, observation: Observation) -> str | None:
    """A plausible action that is not admissible here: a place of another room, a thing that is not there."""
    thing, rng = player.goal.thing, player.rng
    stranger = rng.choice(_STRANGERS)
    action = rng.choice(
        [
            f"go to {stranger}",
            f"take {thing} 1 from {stranger}",
            f"move {thing} 1 to {stranger}",
            f"go to {player.place}" if player.place else INVALID_ACTION,
            INVALID_ACTION,
        ]
    )
    return None if action in observation.admissible_actions else action
