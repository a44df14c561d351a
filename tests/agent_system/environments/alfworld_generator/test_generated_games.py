"""What a single generated game is like, checked without the engine."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter

import pytest

from agent_system.environments.alfworld.generator import PRESETS, SPLITS, TASK_TYPES, resolve_preset
from agent_system.environments.alfworld.generator.build import Game, build_game
from agent_system.environments.alfworld.generator.interpreter import PlanError, replay
from agent_system.environments.alfworld.generator.package import alfworld_package
from agent_system.environments.alfworld.generator.presets import Preset, parse_knobs
from agent_system.environments.alfworld.generator.scene import scene
from agent_system.environments.alfworld.generator.tables import ROOMS
from agent_system.environments.alfworld.safety import check_keys, check_strictly

# sha256 over the PDDL problems of the first twelve train games of seed 0.
GOLDEN = {
    "micro": "694c68f82e5ff2c83e86d1f6748f183ee18744bd45ac92d54f6391a69a2b994e",
    "tiny": "13801b841ca716d0245300c334e9dcbd625a82e91345995c49d7b12b23cffb7e",
    "small": "d5ea31b42241816fc16de18055b2d5b713aba0ce7ef09b347b08d0cf02d0be81",
    "real": "182f533bad0908c5bcaaf04583938712d7570ac8ae4d338a007919517aedddef",
}


def some_games(size: str, count: int, split: str = "train", seed: int = 0, **knobs: object) -> list[Game]:
    preset = resolve_preset(size, knobs)
    games: list[Game] = []
    taken: set[str] = set()
    for index in range(count):
        games.append(build_game(seed, index, split, TASK_TYPES[index % 6], preset, taken))
        taken.add(games[-1].fingerprint)
    return games


@pytest.mark.parametrize("size", PRESETS)
def test_seed_gives_the_golden_games(size: str) -> None:
    if alfworld_package().version != "0.4.2":
        pytest.skip("the golden games are those of alfworld 0.4.2")
    problems = "".join(game.problem for game in some_games(size, 12))
    assert hashlib.sha256(problems.encode()).hexdigest() == GOLDEN[size]


@pytest.mark.parametrize("size", PRESETS)
@pytest.mark.parametrize("split", SPLITS)
def test_walkthroughs_win_in_the_interpreter(size: str, split: str) -> None:
    for game in some_games(size, 48, split, seed=3):
        replay(game.problem, game.walkthrough)


def test_walkthroughs_have_no_command_to_spare() -> None:
    for game in some_games("tiny", 30, seed=1):
        for position in range(len(game.walkthrough)):
            shorter = game.walkthrough[:position] + game.walkthrough[position + 1 :]
            with pytest.raises(PlanError):
                replay(game.problem, shorter)


@pytest.mark.parametrize("size", PRESETS)
def test_games_are_safe_and_complete(size: str) -> None:
    for game in some_games(size, 12):
        content = json.loads(game.files["game.tw-pddl"])
        check_keys(content)
        check_strictly(content)
        assert game.files["game.tw-pddl"].isascii()
        assert game.files["initial_state.pddl"] == content["pddl_problem"] == game.problem
        assert content["walkthrough"] == game.walkthrough
        sentence = re.search(r"Your task is to: (.*?)\.\"", content["grammar"])
        assert sentence
        assert re.fullmatch("[a-z ]+", sentence[1])
        trajectory = json.loads(game.files["traj_data.json"])
        assert trajectory["task_type"] == game.task_type
        assert trajectory["generator"]["steps"] == len(game.walkthrough)
        pattern = rf"json_2\.1\.1/train/{game.task_type}-[A-Za-z]+-None-[A-Za-z]+-[1-4]\d{{3}}/trial_\w+"
        assert re.fullmatch(pattern, game.folder)


def test_games_of_all_splits_are_distinct() -> None:
    for size in ("micro", "tiny"):
        marks = Counter(game.fingerprint for split in SPLITS for game in some_games(size, 60, split))
        assert len(marks) == 180


@pytest.mark.parametrize("size", ["tiny", "small", "real"])
def test_unseen_rooms_do_not_look_like_seen_ones(size: str) -> None:
    preset = PRESETS[size]
    for room in ROOMS:
        seen = {scene(room, index, preset) for index in range(preset.scenes[0])}
        unseen = {scene(room, index, preset) for index in range(preset.scenes[0], sum(preset.scenes))}
        assert not seen & unseen


def test_sizes_grow() -> None:
    def receptacles(game: Game) -> int:
        return json.loads(game.files["traj_data.json"])["generator"]["receptacles"]

    means = [sum(map(receptacles, some_games(size, 24))) / 24 for size in ("micro", "tiny", "small", "real")]
    assert means == sorted(means)
    assert 3 <= means[0] <= 4 < means[1] <= 6 < means[2] <= 12 < means[3]


def test_knobs_change_what_they_name() -> None:
    def about(**knobs: object) -> list[dict[str, int]]:
        return [json.loads(g.files["traj_data.json"])["generator"] for g in some_games("tiny", 18, **knobs)]

    assert {game["receptacles"] for game in about(receptacles=[7, 7])} == {7}
    assert {game["receptacles"] for game in about(receptacles=7)} == {7}
    assert all(game["targets"] == 4 for game in about(targets=[4, 4]))
    assert all(game["targets_behind_doors"] == 0 for game in about(openable=0.0, hide=0.0))
    hidden, open_ = (sum(game["targets_behind_doors"] for game in about(hide=hide)) for hide in (1.0, 0.0))
    assert hidden > 2 * open_
    assert any("(sliceable" in game.problem for game in some_games("tiny", 18, slicing=True))
    assert not any("(sliceable" in game.problem for game in some_games("tiny", 18, slicing=False))


@pytest.mark.parametrize(
    ("size", "knobs", "message"),
    [
        ("tinny", {}, "unknown size 'tinny'; did you mean 'tiny'"),
        ("tiny", {"hid": 1.0}, "unknown knob 'hid'; did you mean 'hide'"),
        ("tiny", {"name": "x"}, "unknown knob 'name'"),
        ("tiny", {"hide": 1.5}, "knob hide=1.5"),
        ("tiny", {"hide": float("nan")}, "knob hide=nan"),
        ("tiny", {"objects": [5, 3]}, "the low end 5 is above the high end 3"),
        ("tiny", {"objects": "many"}, "knob objects='many'"),
        ("tiny", {"receptacles": [1, 2]}, "knob receptacles="),
        ("tiny", {"targets": [1, 10**6]}, "knob targets="),
        ("tiny", {"scenes": [999, 999]}, "at most 1000 scenes"),
        ("tiny", {"slicing": "perhaps"}, "knob slicing='perhaps'"),
    ],
)
def test_bad_sizes_and_knobs_are_named(size: str, knobs: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        resolve_preset(size, knobs)
    assert "\n" not in str(caught.value)


def test_knobs_of_the_command_line() -> None:
    assert parse_knobs(["hide=1.0", "objects=[3, 5]", "receptacles=null"]) == {
        "hide": 1.0,
        "objects": [3, 5],
        "receptacles": None,
    }
    for text in ("hide", "hide=", "objects=3-5"):
        with pytest.raises(ValueError, match="cannot read knob"):
            parse_knobs([text])


def test_presets_hold_their_own_rules() -> None:
    for preset in PRESETS.values():
        assert Preset.model_validate(preset.model_dump()) == preset
