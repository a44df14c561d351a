from __future__ import annotations

import hashlib
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from agent_system.environments.alfworld.env import AlfworldEnv
from agent_system.environments.alfworld.safety import load_manifest, read_game, split_task
from agent_system.environments.alfworld.spec import AlfworldSpec
from agent_system.environments.base import BadTask, Task


@pytest.fixture(scope="module")
def env() -> AlfworldEnv:
    return AlfworldSpec("unused").make()


@pytest.fixture
def game(tasks: list[Task]) -> dict[str, Any]:
    return json.loads(Path(tasks[0].location).read_text())


def write(folder: Path, content: Any) -> Task:
    path = folder / "game.tw-pddl"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return Task("bad", "pick_and_place_simple", str(path), hashlib.sha256(path.read_bytes()).hexdigest())


def test_released_and_generated_games_pass(tasks: list[Task], real_tasks: list[Task]) -> None:
    for task in tasks + real_tasks:
        assert read_game(task.location, sha256=task.sha256)["solvable"] is True


def swap(key: str, old: str, new: str) -> Any:
    def change(game: dict[str, Any]) -> dict[str, Any]:
        assert old in game[key]
        return game | {key: game[key].replace(old, new, 1)}

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda game: "", "not valid JSON"),
        (lambda game: json.dumps(game)[:3000], "not valid JSON, perhaps truncated"),
        (lambda game: "[" * 100_000, "RecursionError|recursion|not valid JSON"),
        (lambda game: [], "expected a JSON object"),
        (lambda game: {k: v for k, v in game.items() if k != "pddl_problem"}, "'pddl_problem' is missing"),
        (lambda game: game | {"grammar": 7}, "'grammar' is missing"),
        (lambda game: game | {"solvable": False}, "marked unsolvable"),
        (lambda game: game | {"walkthrough": [1]}, "'walkthrough' is not a list of texts"),
        (lambda game: game | {"grammar": game["grammar"][:2000]}, "grammar is not ALFWorld's"),
        (lambda game: game | {"grammar": ""}, "no single plain task sentence"),
        (swap("grammar", "You open the {r.name}", "You open {__import__('os')}"), "grammar is not ALFWorld's"),
        (swap("grammar", "Your task is to: ", "Your task is to: {print(1)} "), "no single plain task sentence"),
        (swap("grammar", "Your task is to: ", "Your task is to: #look.feedback# "), "no single plain task sentence"),
        (swap("grammar", "Your task is to: ", "Your task is to: [x] "), "no single plain task sentence"),
        (swap("grammar", "Your task is to: ", "Your task is to: \\u007bx\\u007d "), "no single plain task sentence"),
        (lambda game: game | {"grammar": game["grammar"] * 2}, "no single plain task sentence"),
        (lambda game: game | {"grammar": game["grammar"] + "\n"}, "grammar is not ALFWorld's"),
        (swap("pddl_domain", "(:action", "(:action evil) (:action"), "PDDL domain is neither"),
        (swap("pddl_problem", "agent1", "{agent1}"), r"contains '\{'"),
        (swap("pddl_problem", "agent1", "agént1"), "contains 'é'"),
    ],
)
def test_unsafe_and_malformed_files_are_refused(
    change: Any, reason: str, game: dict[str, Any], env: AlfworldEnv, tasks: list[Task], tmp_path: Path
) -> None:
    task = write(tmp_path, change(game))
    with pytest.raises(BadTask, match=reason) as caught:
        env.reset(task)
    assert task.location in str(caught.value)
    assert "\n" not in str(caught.value)
    assert env.reset(tasks[0]).instruction


def test_code_in_a_grammar_is_refused_and_not_run(game: dict[str, Any], env: AlfworldEnv, tmp_path: Path) -> None:
    proof = tmp_path / "was-here"
    attack = f"{{__import__('pathlib').Path('{proof}').touch()}}"
    task = write(tmp_path, swap("grammar", "You are in the middle of a room.", attack)(game))
    with pytest.raises(BadTask, match="a grammar can run code"):
        env.reset(task)
    assert not proof.exists()


def test_a_trusted_manifest_admits_a_foreign_grammar(game: dict[str, Any], tmp_path: Path) -> None:
    task = write(tmp_path, swap("grammar", "You are in the middle of a room.", "You stand in a room.")(game))
    manifest = tmp_path / "MANIFEST.jsonl.xz"
    manifest.write_bytes(lzma.compress(json.dumps({"sha256": task.sha256}).encode()))
    first = AlfworldSpec("unused", trusted_manifest=str(manifest)).make().reset(task)
    assert first.observation.text.startswith("You stand in a room.")


def test_manifests(real_data: Path, tmp_path: Path) -> None:
    assert len(load_manifest(real_data / "MANIFEST.jsonl.xz")) == 3553 + 140 + 134 + 200
    bad = tmp_path / "MANIFEST.jsonl"
    bad.write_text('{"sha256": "a"}\n\n{"sha": "b"}\n')
    with pytest.raises(ValueError, match="line 3"):
        load_manifest(bad)


def test_missing_and_changed_files_are_bad_tasks(env: AlfworldEnv, tasks: list[Task], tmp_path: Path) -> None:
    with pytest.raises(BadTask, match="cannot be read"):
        env.reset(Task("x", "x", str(tmp_path / "none.tw-pddl"), ""))
    other = Task("x", "x", tasks[0].location, tasks[1].sha256)
    with pytest.raises(BadTask, match="changed since it was indexed"):
        env.reset(other)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("agent1 - agent", "agent1 - agent\n agent1 - agent", "SystemExit"),  # the translator exits
        ("(:init", "(:init (", "ParseError"),
    ],
)
def test_games_the_engine_cannot_load_are_bad_tasks(
    old: str, new: str, reason: str, game: dict[str, Any], env: AlfworldEnv, tasks: list[Task], tmp_path: Path
) -> None:
    task = write(tmp_path, swap("pddl_problem", old, new)(game))
    with pytest.raises(BadTask, match=reason):
        env.reset(task)
    assert env.reset(tasks[0]).instruction


def test_an_impossible_goal_is_explained(
    game: dict[str, Any], env: AlfworldEnv, tasks: list[Task], tmp_path: Path
) -> None:
    problem, goal = game["pddl_problem"].split("(:goal")
    task = write(tmp_path, game | {"pddl_problem": problem + "(:goal" + goal.replace("Type)", "XType)", 1)})
    with pytest.raises(BadTask, match=r"goal can never be reached|Undeclared"):
        env.reset(task)
    assert env.reset(tasks[0]).instruction


@pytest.mark.parametrize("sentence", ["put a mug in desk.", "it's 2 o'clock, so-so."])
def test_plain_task_sentences(sentence: str) -> None:
    before, after = '{"rhs": "Your task is to: ', '"}'
    assert split_task(before + sentence + after) == (before, sentence, after)


@pytest.mark.parametrize("sentence", ["", "{x}", "a\\nb", "#x#", "[x]", "a|b", "a;b", "é", "x" * 301, "a\tb"])
def test_other_task_sentences_are_not_plain(sentence: str) -> None:
    assert split_task('{"rhs": "Your task is to: ' + sentence + '"}') is None
