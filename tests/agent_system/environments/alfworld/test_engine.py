"""The fast engine against TextWorld as alfworld itself wraps it, which is imported with a scratch data folder because
its import creates one."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fast_downward
import pytest
import textworld
import textworld.envs.pddl.logic as pddl_logic
import textworld.envs.pddl.textgen as textgen
from textworld.envs import PddlEnv
from textworld.logic import Rule

from agent_system.environments.alfworld import patches
from agent_system.environments.alfworld.engine import Frame, GameEngine, readable_names
from agent_system.environments.alfworld.spec import AlfworldSpec
from agent_system.environments.alfworld.translation import TranslationCache
from agent_system.environments.base import EnvironmentFault, Task

Walkthrough = Callable[[Task], list[str]]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """PddlEnv inside alfworld's own naming wrapper: no code of ours."""
    patch = pytest.MonkeyPatch()
    patch.setenv("ALFWORLD_DATA", str(tmp_path_factory.mktemp("alfworld")))
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

    patch.undo()
    return AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)), shuffle=False)


@pytest.fixture(scope="module")
def fast() -> GameEngine:
    return GameEngine("fast")


def frame(state: Any) -> Frame:
    return Frame(state.feedback, tuple(state["admissible_commands"]), bool(state["won"]))


def play(task: Task, actions: list[str | None], stock: Any, fast: GameEngine) -> Frame:
    """Plays the same actions on both (None: a random admissible one) and requires equal frames throughout."""
    dice = random.Random(task.task_id)
    expected = frame(stock.reset())
    actual = fast.load(json.loads(Path(task.location).read_text()), task.location)
    assert actual == expected
    for action in actions:
        command = action or dice.choice(expected.commands)
        expected = frame(stock.step(command)[0])
        actual = fast.step(command)
        assert actual == expected, command
    return actual


@pytest.mark.parametrize("number", [3, 51])
def test_fast_equals_stock_on_released_games(
    number: int, real_tasks: list[Task], stock: Any, fast: GameEngine, walkthrough: Walkthrough
) -> None:
    task = real_tasks[number]
    stock.load(task.location)
    infos = stock._entity_infos
    assert readable_names(infos) == {identifier: info.name for identifier, info in infos.items()}
    assert play(task, list(walkthrough(task)), stock, fast).won
    play(task, ["xyzzy", "help", " look ", "go to nowhere 7", *[None] * 8], stock, fast)


@pytest.mark.parametrize("number", [0, 3])
def test_fast_equals_stock_on_generated_games(
    number: int, tasks: list[Task], stock: Any, fast: GameEngine, walkthrough: Walkthrough
) -> None:
    task = tasks[number]
    stock.load(task.location)
    assert play(task, list(walkthrough(task)), stock, fast).won
    play(task, ["", *[None] * 15], stock, fast)


def test_the_stock_engine_is_the_same_layer_without_patches(tasks: list[Task], fast: GameEngine) -> None:
    game = json.loads(Path(tasks[0].location).read_text())
    stock_engine = GameEngine("stock")
    assert stock_engine.load(game, "game") == fast.load(game, "game")
    assert stock_engine.step("inventory") == fast.step("inventory")


def test_patches_are_gone_after_use_even_after_an_error() -> None:
    def now() -> tuple[Any, ...]:
        return (
            fast_downward.pddl2sas,
            pddl_logic.GameLogic,
            pddl_logic.PddlState,
            textgen._parse_and_convert,
            textgen.copy_context,
            textgen.deepcopy,
            vars(Rule)["parse_conjunctive_query"],
        )

    def fail_while_patched() -> None:
        with patches.applied(TranslationCache()):
            assert all(a is not b for a, b in zip(before, now(), strict=True))
            raise ZeroDivisionError

    before = now()
    with pytest.raises(ZeroDivisionError):
        fail_while_patched()
    assert all(a is b for a, b in zip(before, now(), strict=True))


def test_a_grammar_of_another_shape_is_parsed_in_full(tasks: list[Task], fast: GameEngine) -> None:
    game = json.loads(Path(tasks[0].location).read_text())
    first = fast.load(game, "game")
    changed = game["grammar"].replace("You are not carrying anything.", "Nothing. #task#", 1)
    assert fast.load(game | {"grammar": changed}, "game") == first
    assert fast.step("inventory").feedback == "Nothing. " + first.feedback.splitlines()[-1]
    two_sentences = game["grammar"].replace('"rhs": "You are not', '"rhs": "Your task is to: you are not', 1)
    assert fast.load(game | {"grammar": two_sentences}, "game") == first
    assert fast.step("inventory").feedback == "Your task is to: you are not carrying anything."


def test_objects_of_a_kind_are_numbered_in_descending_order() -> None:
    assert readable_names(["mug_bar_1", "mug_bar_2", "sink_bar_1_bar_sinkbasin", "Pot"]) == {
        "mug_bar_2": "mug 1",
        "mug_bar_1": "mug 2",
        "sink_bar_1_bar_sinkbasin": "sinkbasin 1",
        "Pot": "Pot ",
    }


# -- the environment -----------------------------------------------------------------------------------------------


def test_every_released_mini_game_is_won_by_its_walkthrough(
    real_tasks: list[Task], real_games: Path, walkthrough: Walkthrough
) -> None:
    env = AlfworldSpec(str(real_games)).make()
    fingerprints = set()
    for task in real_tasks:
        first = env.reset(task)
        fingerprints.add(first.fingerprint)
        assert first.instruction
        assert first.instruction not in first.observation.text
        assert "help" not in first.observation.admissible_actions
        results = [env.step(action) for action in walkthrough(task)]
        assert all(result.admissible for result in results)
        assert [result.success for result in results] == [False] * (len(results) - 1) + [True]
        assert results[-1].done
    assert len(fingerprints) == len(real_tasks)


def test_unknown_actions_change_nothing(tasks: list[Task]) -> None:
    env = AlfworldSpec("unused").make()
    first = env.reset(tasks[0])
    result = env.step("dance with the mug")
    assert result.observation.text == "Nothing happens."
    assert result.observation.admissible_actions == first.observation.admissible_actions
    assert (result.admissible, result.done, result.success) == (False, False, False)
    assert not env.step("help").admissible
    assert env.step("look").admissible


def test_steps_outside_an_episode_are_faults(tasks: list[Task], walkthrough: Walkthrough) -> None:
    env = AlfworldSpec("unused").make()
    with pytest.raises(EnvironmentFault, match="reset the environment first"):
        env.step("look")
    env.reset(tasks[0])
    for action in walkthrough(tasks[0]):
        env.step(action)
    with pytest.raises(EnvironmentFault, match="no episode is running"):
        env.step("look")


TRANSCRIPT = """
import json, sys
from agent_system.environments.alfworld.spec import AlfworldSpec
spec = AlfworldSpec(sys.argv[1])
env, task = spec.make(), spec.tasks("train")[1]
first = env.reset(task)
lines = [first.fingerprint, first.observation.text]
for action in json.load(open(task.location))["walkthrough"]:
    result = env.step(action)
    lines += [result.observation.text, *result.observation.admissible_actions]
print(json.dumps(lines))
"""


def test_slots_and_processes_agree(games: Path, tasks: list[Task], walkthrough: Walkthrough) -> None:
    slots = [AlfworldSpec("unused").make() for _ in range(2)]
    firsts = [slot.reset(tasks[1]) for slot in slots]
    assert firsts[0] == firsts[1]
    expected = [firsts[0].fingerprint, firsts[0].observation.text]
    for action in walkthrough(tasks[1]):
        results = [slot.step(action) for slot in slots]
        assert results[0] == results[1]
        expected += [results[0].observation.text, *results[0].observation.admissible_actions]
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    other = subprocess.run(
        [sys.executable, "-c", TRANSCRIPT, str(games)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert other.returncode == 0, other.stderr
    assert json.loads(other.stdout) == expected


def test_the_process_is_left_as_it_was(tasks: list[Task], tmp_path: Path) -> None:
    argv, stdout, home = list(sys.argv), sys.stdout, os.environ.get("ALFWORLD_DATA")
    env = AlfworldSpec("unused", cache_dir=str(tmp_path)).make()
    env.reset(tasks[2])
    assert (sys.argv, sys.stdout, os.environ.get("ALFWORLD_DATA")) == (argv, stdout, home)


def test_the_light_modules_do_not_import_textworld() -> None:
    code = (
        "import sys, agent_system.environments.client, agent_system.environments.alfworld.spec\n"
        "print([name for name in ('textworld', 'fast_downward', 'alfworld', 'ray', 'torch') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "[]", result.stderr
