"""The interpreter knows ALFWorld's rules: it agrees with the engine, and it reads real games."""

from __future__ import annotations

import copy
import itertools
import json
import random
import tarfile
from pathlib import Path

import pytest

from agent_system.environments.alfworld.generator import TASK_TYPES, resolve_preset
from agent_system.environments.alfworld.generator.build import build_game
from agent_system.environments.alfworld.generator.interpreter import PlanError, World, replay
from agent_system.environments.alfworld.generator.problem import displayed_names, read_problem

MINI_SET = Path("..") / "shared" / "data" / "alfworld" / "alfworld_text_mini.tar.xz"


def possible(world: World, command: str) -> bool:
    try:
        copy.deepcopy(world).step(command)
    except PlanError:
        return False
    return True


def all_commands(problem: str) -> list[str]:
    """Every command that could ever be meant in a game."""
    types = read_problem(problem).types
    names = displayed_names(types)
    things = [names[identifier] for identifier, kind in types.items() if kind == "object"]
    receptacles = [names[identifier] for identifier, kind in types.items() if kind == "receptacle"]
    commands = [f"{verb} {receptacle}" for verb in ("go to", "open", "close") for receptacle in receptacles]
    commands += [f"use {thing}" for thing in things]
    commands += [f"slice {thing} with {knife}" for thing, knife in itertools.product(things, things)]
    for thing, receptacle in itertools.product(things, receptacles):
        commands += [f"take {thing} from {receptacle}", f"move {thing} to {receptacle}"]
        commands += [f"{verb} {thing} with {receptacle}" for verb in ("clean", "heat", "cool")]
    return commands


@pytest.mark.parametrize("index", range(6))
def test_interpreter_agrees_with_the_engine(index: int) -> None:
    """Along a random walk that ends with the walkthrough, both allow exactly the same commands."""
    engine_module = pytest.importorskip("agent_system.environments.alfworld.engine")
    preset = resolve_preset("tiny", {"slicing": True, "shared": 0.3, "objects": [5, 6]})
    game = build_game(0, index, "train", TASK_TYPES[index], preset)
    commands, world = all_commands(game.problem), World(game.problem)
    engine = engine_module.GameEngine()
    frame = engine.load(json.loads(game.files["game.tw-pddl"]), "generated game")
    choose = random.Random(index)
    for _ in range(8):
        assert frame.won == world.won()
        if frame.won:
            break
        allowed = {command for command in commands if possible(world, command)}
        plain = ("examine", "look", "inventory", "help")
        assert allowed == {command for command in frame.commands if not command.startswith(plain)}
        command = choose.choice(sorted(allowed))
        world.step(command)
        frame = engine.step(command)


def test_all_walkthroughs_of_real_games_win() -> None:
    archive = next((p / MINI_SET for p in Path(__file__).resolve().parents if (p / MINI_SET).exists()), None)
    if archive is None:
        pytest.skip("the real mini set is not beside the project (../shared/data/alfworld)")
    count = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name.endswith("game.tw-pddl"):
                file = tar.extractfile(member)
                assert file
                game = json.load(file)
                replay(game["pddl_problem"], game["walkthrough"])
                count += 1
    assert count == 60


PROBLEM = """
(define (problem toy) (:domain alfred) ; a comment
(:objects MugType - otype DeskType SafeType - rtype agent1 - agent
  Desk_bar_01 Safe_bar_01 - receptacle Mug_bar_01 Mug_bar_02 - object l0 l1 l2 - location)
(:init (atLocation agent1 l0) (receptacleAtLocation Desk_bar_01 l1) (receptacleAtLocation Safe_bar_01 l2)
  (receptacleType Desk_bar_01 DeskType) (receptacleType Safe_bar_01 SafeType) (openable Safe_bar_01)
  (canContain DeskType MugType)
  (objectType Mug_bar_01 MugType) (objectType Mug_bar_02 MugType) (pickupable Mug_bar_01) (pickupable Mug_bar_02)
  (inReceptacle Mug_bar_01 Safe_bar_01) (inReceptacle Mug_bar_02 Desk_bar_01))
(:goal (and (exists (?r - receptacle) (exists (?o - object) (and (objectType ?o MugType) (receptacleType ?r DeskType)
  (inReceptacle ?o ?r) (exists (?p - object) (and (not (= ?o ?p)) (objectType ?p MugType) (inReceptacle ?p ?r)))))))))
"""
PLAN = ["go to safe 1", "open safe 1", "take mug 2 from safe 1", "go to desk 1", "move mug 2 to desk 1"]


def test_ids_are_numbered_downwards() -> None:
    replay(PROBLEM, PLAN)
    with pytest.raises(PlanError, match="command 3"):
        replay(PROBLEM, ["go to safe 1", "open safe 1", "take mug 1 from safe 1"])


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (PLAN[:-1], "does not hold after all 4"),
        ([*PLAN[:1], *PLAN[2:]], "command 2: 'take mug 2 from safe 1' is not possible then"),
        ([*PLAN, "look"], "already holds before command 6"),
        (["dance"], "'dance' is no command"),
        (["go to moon 1"], "there is no moon 1"),
        ([*PLAN[:3], "move mug 2 to safe 1"], "command 4"),  # a safe cannot contain a mug here
        ([], "does not hold after all 0"),
    ],
)
def test_bad_plans_are_refused_with_the_command(plan: list[str], reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        replay(PROBLEM, plan)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("(:goal", "(:gaol", "no section :goal"),
        ("(:init", "(:init)", "closing bracket too many"),
        ("Mug_bar_02 - object", "- object", "'mug_bar_02', which is not declared"),
        ("l0 l1", "l0 l0", "'l0' is declared twice"),
        ("agent1 - agent", "agent1 agent2 - agent", "2 agents"),
        ("(define", "(define ((((" + "(" * 200, "nests deeper"),
        ("(define", "(undefined", "not a PDDL problem"),
    ],
)
def test_bad_problems_are_refused(old: str, new: str, reason: str) -> None:
    assert old in PROBLEM
    with pytest.raises(ValueError, match=reason):
        World(PROBLEM.replace(old, new, 1))
