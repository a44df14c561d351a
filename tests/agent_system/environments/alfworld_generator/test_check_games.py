"""The check finds every kind of bad file and says why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_system.environments.alfworld.check import OFFICIAL_COUNTS, check_games
from agent_system.environments.alfworld.generator import TASK_TYPES, generate_games


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("games")
    generate_games(root, count=6, size="micro")
    generate_games(root, count=6, size="micro", split="valid_seen")
    return root


@pytest.fixture
def copy(games: Path, tmp_path: Path) -> Path:
    """A copy without its manifest, which would find any change by itself."""
    shutil.copytree(games, tmp_path / "copy")
    (tmp_path / "copy" / "MANIFEST.jsonl").unlink()
    return tmp_path / "copy"


def first_game(root: Path, kind: str = "pick_heat") -> Path:
    return next((root / "json_2.1.1" / "train").glob(f"{kind}*/*/game.tw-pddl"))


def edit(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        game = json.loads(path.read_text())
        change(game)
        path.write_text(json.dumps(game))

    return apply


BAD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:500]), "not valid JSON, perhaps truncated"),
    "empty": (lambda path: path.write_text(""), "not valid JSON"),
    "no object": (lambda path: path.write_text("[]"), "expected a JSON object"),
    "missing key": (edit(lambda game: game.pop("pddl_problem")), "'pddl_problem' is missing"),
    "unsolvable": (edit(lambda game: game.update(solvable=False)), "marked unsolvable"),
    "solvable missing": (edit(lambda game: game.pop("solvable")), "'solvable' is missing"),
    "no walkthrough": (edit(lambda game: game.pop("walkthrough")), "no walkthrough"),
    "short walkthrough": (edit(lambda game: game["walkthrough"].pop()), "the goal does not hold after all"),
    "wrong walkthrough": (edit(lambda game: game["walkthrough"].insert(0, "open moon 1")), "'open moon 1'"),
    "foreign grammar": (
        edit(lambda game: game.update(grammar=game["grammar"].replace("hot", "{open('x')}").replace("heat", "{1}"))),
        "a grammar can run code",
    ),
    "foreign domain": (edit(lambda game: game.update(pddl_domain=game["pddl_domain"] + ";")), "its PDDL domain"),
    "no trajectory": (lambda path: path.with_name("traj_data.json").unlink(), "traj_data.json is missing"),
    "bad trajectory": (lambda path: path.with_name("traj_data.json").write_text("{"), "traj_data.json cannot be read"),
    "other task": (
        lambda path: path.with_name("traj_data.json").write_text('{"task_type": "look_at_obj_in_light"}'),
        "traj_data.json says 'look_at_obj_in_light'",
    ),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_file_is_found_and_explained(kind: str, copy: Path) -> None:
    damage, reason = BAD_FILES[kind]
    game = first_game(copy)
    damage(game)
    report = check_games(copy, play=False)
    assert [problem.path for problem in report.problems] == [game.relative_to(copy).as_posix()]
    assert reason in report.problems[0].reason
    assert "\n" not in report.problems[0].reason
    assert not report.ok
    assert report.total == 12


def test_good_games_are_counted(games: Path) -> None:
    steps: list[tuple[int, int]] = []
    report = check_games(games, play=False, progress=lambda *done: steps.append(done))
    assert report.ok
    assert report.origin == "generated"
    assert report.counts == {split: dict.fromkeys(sorted(TASK_TYPES), 1) for split in ("train", "valid_seen")}
    assert report.expected == report.incomplete == {}
    assert steps == [(done, 12) for done in range(1, 13)]
    assert json.loads(json.dumps(report.as_dict()))["total"] == 12
    assert check_games(games / "json_2.1.1", play=False, splits=["train"]).total == 6


def test_duplicates_are_found_across_splits(copy: Path) -> None:
    game = first_game(copy)
    twin = copy / "json_2.1.1" / "valid_seen" / game.parent.parent.name / "trial_again"
    shutil.copytree(game.parent, twin)
    (problem,) = check_games(copy, play=False).problems
    assert problem.path == (twin / "game.tw-pddl").relative_to(copy).as_posix()
    assert problem.reason == f"same content as {game.relative_to(copy).as_posix()}"


def test_manifest_is_held_against_the_files(games: Path, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(games, root)
    changed, gone = first_game(root), first_game(root, "pick_cool")
    edit(lambda game: game.update(extra=1))(changed)
    shutil.rmtree(gone.parent)
    stranger = changed.parent.parent / "trial_new" / "game.tw-pddl"
    shutil.copytree(first_game(games).parent, stranger.parent)
    reasons = {problem.path: problem.reason for problem in check_games(root, play=False).problems}
    assert "changed since" in reasons[changed.relative_to(root).as_posix()]
    assert "the file is missing" in reasons[gone.relative_to(root).as_posix()]
    assert "not listed" in reasons[stranger.relative_to(root).as_posix()]
    (root / "MANIFEST.jsonl").write_text("{}\n")
    assert any(problem.path == "MANIFEST.jsonl" for problem in check_games(root, play=False).problems)


def test_what_is_no_game_is_skipped_and_counted(copy: Path) -> None:
    train = copy / "json_2.1.1" / "train"
    (train / "pick_and_place_with_movable_recep-Pen-Mug-Desk-301" / "trial_1").mkdir(parents=True)
    (train / "pick_and_place_simple-Pen-None-Desk-301" / "trial_1").mkdir(parents=True)
    unknown = train / "juggle-Pen-None-Desk-301" / "trial_1"
    shutil.copytree(first_game(copy).parent, unknown)
    report = check_games(copy, play=False)
    assert report.skipped["train"] == {"movable or sliced": 1, "no game.tw-pddl": 1}
    assert ["names no known task type" in problem.reason for problem in report.problems] == [True]
    assert report.counts["train"]["unknown"] == 1


def test_official_roots_are_measured_against_the_release(copy: Path) -> None:
    for trial in (copy / "json_2.1.1").glob("*/*/trial_*"):
        trial.rename(trial.with_name(trial.name.replace("trial_G", "trial_T")))
    report = check_games(copy, play=False)
    assert report.ok
    assert report.origin == "official"
    assert report.expected == {split: OFFICIAL_COUNTS[split] for split in ("train", "valid_seen")}
    assert report.incomplete == {"train": (6, 3553), "valid_seen": (6, 140)}


def test_missing_folders_are_named(games: Path, tmp_path: Path) -> None:
    for root, splits in ((tmp_path / "none", None), (tmp_path, None), (games, ["valid_unseen"])):
        with pytest.raises(FileNotFoundError, match="rsipo games generate"):
            check_games(root, splits=splits, play=False)


def test_engine_finds_what_cannot_be_won(copy: Path) -> None:
    """Played for real: a lost goal, a translator that exits, a walkthrough that fails; the rest still pass."""
    pytest.importorskip("agent_system.environments.alfworld.engine")
    damage: dict[str, Callable[[dict], object]] = {
        "pick_heat": lambda game: game["walkthrough"].pop(),
        "pick_cool": lambda game: game.update(
            pddl_problem=game["pddl_problem"].replace("agent1 - agent", "agent1 - agent\nagent1 - agent")
        ),
        "pick_clean": lambda game: game.update(pddl_problem=game["pddl_problem"].replace("(cleanable", "(heatable")),
        "look_at": lambda game: game["walkthrough"].insert(1, "open moon 1"),
    }
    for kind, change in damage.items():
        edit(change)(first_game(copy, kind))
    report = check_games(copy, splits=["train"])
    assert report.played
    assert sorted(Path(problem.path).parts[2].split("-")[0] for problem in report.problems) == [
        "look_at_obj_in_light",
        "pick_clean_then_place_in_recep",
        "pick_cool_then_place_in_recep",
        "pick_heat_then_place_in_recep",
    ]


def test_several_processes_find_the_same(copy: Path) -> None:
    first_game(copy).write_text("")
    assert check_games(copy, play=False, processes=2) == check_games(copy, play=False)
