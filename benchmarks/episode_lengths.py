"""Measure episode lengths on real ALFWorld games, for benchmarks that simulate everything else.

    python benchmarks/episode_lengths.py DATA_ROOT --games 30 --out benchmarks/data/alfworld_episode_lengths.json

A scripted text-only player stands in for the policy. As the student it searches, and half of its actions are random;
as the teacher it also knows where objects lie, as a good skill would tell. Turn limit 50. Engine and games are real.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from agent_system.environments.alfworld.spec import AlfworldSpec
from agent_system.environments.base import Environment, Task
from agent_system.rollout.seeds import derive_seed
from rsipo.embedded.player import ScriptedPlayer, parse_goal, sightings

MAX_TURNS = 50
NOISE = 0.5


def play(environment: Environment, task: Task, known: dict[str, str], seed: int) -> tuple[int, bool, dict[str, str]]:
    """One episode: turns taken, success, and where things were first seen."""
    start = environment.reset(task)
    player = ScriptedPlayer(parse_goal(start.instruction), random.Random(seed), NOISE, known)
    observation, seen = start.observation, dict[str, str]()
    for turn in range(1, MAX_TURNS + 1):
        seen = sightings(observation.text) | seen
        _, action = player.act(observation)
        result = environment.step(action)
        if result.done:
            return turn, True, seen
        observation = result.observation
    return MAX_TURNS, False, seen


def measure(environment: Environment, task: Task, rollouts: int, replays: int) -> dict[str, object]:
    """Lengths of student and teacher episodes of one game, each as [turns, success]."""
    student, where = [], dict[str, str]()
    for index in range(rollouts):
        turns, success, seen = play(environment, task, {}, derive_seed("student", task.task_id, index))
        student.append([turns, success])
        where = seen | where
    teacher = [
        play(environment, task, where, derive_seed("teacher", task.task_id, index))[:2] for index in range(replays)
    ]
    return {"game": task.task_id, "type": task.task_type, "student": student, "teacher": teacher}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_root", help="folder of real games, as alfworld-download lays it out")
    parser.add_argument("--split", default="valid_seen")
    parser.add_argument("--games", type=int, default=30, help="spread evenly over the split")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()

    spec = AlfworldSpec(arguments.data_root, max_turns=MAX_TURNS)
    tasks = spec.tasks(arguments.split)
    count = min(arguments.games, len(tasks))
    chosen = [tasks[number * len(tasks) // count] for number in range(count)]
    environment = spec.make()
    games, skipped = [], 0
    for task in chosen:
        try:
            games.append(measure(environment, task, rollouts=8, replays=4))
        except ValueError:  # a task sentence written by a person, which the scripted player does not understand
            skipped += 1
            continue
        print(f"{len(games):3d} {games[-1]['student']} {games[-1]['teacher']} {task.task_id}", flush=True)
    source = f"scripted player on real ALFWorld games ({len(games)} of split {arguments.split}, {skipped} skipped)"
    lines = ",\n".join(json.dumps(game) for game in games)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(f'{{"source": {json.dumps(source)}, "max_turns": {MAX_TURNS}, "games": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
