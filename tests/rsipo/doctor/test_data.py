"""The benchmark's tasks: counts, hashes, and games that are not what the manifest says."""

from __future__ import annotations

import shutil
from pathlib import Path

from rsipo.configuration import compose_run
from rsipo.doctor.data import check_data
from rsipo.doctor.findings import Finding
from rsipo.models import EMBEDDED_POLICY
from rsipo.run_settings import RunSettings


def look(root: Path, *overrides: str, recipe: str = "embedded") -> dict[str, Finding]:
    words = [f"recipe={recipe}", f"policy.path={EMBEDDED_POLICY}", "run.name=a", f"env.data_root={root}", *overrides]
    settings = RunSettings.from_config(compose_run(words))
    return {finding.what: finding for finding in check_data(settings, made_later=False)}


def test_generated_games_are_counted_and_hashed(games: Path) -> None:
    found = look(games, "panel=embedded", "panel.splits.valid_unseen=6")
    assert {finding.level for finding in found.values()} == {"ok"}
    assert found["train"].found.startswith("12 tasks of 6 types, sha256 ")
    assert "as in MANIFEST" in found["valid_unseen"].found
    assert found["train"].found == look(games)["train"].found


def test_another_number_than_the_panels_is_a_warning(games: Path) -> None:
    found = look(games, "panel=embedded")
    assert (found["valid_unseen"].level, "60 expected" in found["valid_unseen"].found) == ("warn", True)


def test_a_game_that_is_not_the_manifests_is_a_failure(games: Path) -> None:
    game = next((games / "json_2.1.1" / "train").glob("*/*/game.tw-pddl"))
    game.write_text(game.read_text() + " ")
    found = look(games, "panel=embedded")
    assert found["train"].level == "fail"
    assert "1 differ from MANIFEST" in found["train"].found
    assert game.parent.name in found["train"].found


def test_a_missing_split_fails_where_training_needs_it(games: Path) -> None:
    shutil.rmtree(games / "json_2.1.1" / "valid_unseen")
    found = look(games, "panel=alfworld", recipe="alfworld")
    assert found["valid_unseen"].level == "warn"
    assert "rsipo games generate" in found["valid_unseen"].remedy
    shutil.rmtree(games / "json_2.1.1" / "train")
    found = look(games, "panel=alfworld", recipe="alfworld")
    assert found["train"].level == "fail"


def test_a_broken_manifest_is_a_failure(games: Path) -> None:
    next(games.glob("MANIFEST*")).write_text("{")
    assert any(finding.level == "fail" and "line 1" in finding.found for finding in look(games).values())
