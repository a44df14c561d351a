"""The summary: numbers by hand, lost episodes counted, and independence of the order of playing."""

from __future__ import annotations

import json
import random

import pytest
from rich.console import Console

from agent_system.environments.base import Task
from rsipo.evaluation.episodes import Key, Outcome
from rsipo.evaluation.panel import Panel
from rsipo.evaluation.summary import summarise, summary_table

SEEDS = [1, 2]
PANEL = Panel(
    "alfworld",
    {
        "valid_seen": [Task("s/a", "look", "", "a"), Task("s/b", "look", "", "b"), Task("s/c", "put", "", "c")],
        "valid_unseen": [Task("u/a", "put", "", "d")],
    },
)
IDENTITY = {"protocol": {"seeds": SEEDS}}


def outcome(success: bool = False, turns: int = 10, invalid: int = 0, status: str = "ok") -> Outcome:
    return Outcome(status, success, turns, invalid, invalid + 1, False)


@pytest.fixture
def outcomes() -> dict[Key, Outcome]:
    return {
        Key("valid_seen", 1, "s/a"): outcome(True, turns=4),
        Key("valid_seen", 2, "s/a"): outcome(True, turns=6),
        Key("valid_seen", 1, "s/b"): outcome(invalid=5),
        Key("valid_seen", 2, "s/b"): outcome(status="timeout", turns=7),
        Key("valid_seen", 1, "s/c"): outcome(True, turns=5),
        Key("valid_seen", 2, "s/c"): outcome(),
        Key("valid_unseen", 1, "u/a"): outcome(),
        Key("valid_unseen", 2, "u/a"): outcome(),
    }


def test_numbers_by_hand(outcomes: dict[Key, Outcome]) -> None:
    seen = summarise(PANEL, SEEDS, outcomes, IDENTITY)["splits"]["valid_seen"]
    assert (seen["tasks"], seen["episodes"], seen["lost"]) == (3, 6, 1)
    assert seen["success"]["rounds"] == pytest.approx((2 / 3, 1 / 3))
    assert seen["success"]["mean"] == pytest.approx(3 / 6)  # the lost one counts as not solved
    assert seen["success"]["std"] == pytest.approx(1 / 3 / 2**0.5)
    assert seen["turns"] == pytest.approx((4 + 6 + 10 + 5 + 10) / 5)  # over those that were not lost
    assert seen["invalid_actions"] == pytest.approx(5 / 35)
    assert seen["inadmissible_actions"] == pytest.approx(10 / 35)
    assert {name: cell["tasks"] for name, cell in seen["types"].items()} == {"look": 2, "put": 1}
    assert seen["types"]["look"]["success"]["mean"] == 0.5
    assert seen["success"]["mean_over_types"] == 0.5


def test_the_order_of_playing_does_not_show(outcomes: dict[Key, Outcome]) -> None:
    first = json.dumps(summarise(PANEL, SEEDS, outcomes, IDENTITY))
    shuffled = list(outcomes.items())
    random.Random(3).shuffle(shuffled)
    assert json.dumps(summarise(PANEL, SEEDS, dict(shuffled), IDENTITY)) == first


def test_no_episode_may_be_missing(outcomes: dict[Key, Outcome]) -> None:
    del outcomes[Key("valid_unseen", 2, "u/a")]
    with pytest.raises(KeyError):
        summarise(PANEL, SEEDS, outcomes, IDENTITY)


def test_all_lost_is_zero_with_nothing_to_average(outcomes: dict[Key, Outcome]) -> None:
    lost = {key: outcome(status="failed") for key in outcomes}
    unseen = summarise(PANEL, SEEDS, lost, IDENTITY)["splits"]["valid_unseen"]
    assert (unseen["success"]["mean"], unseen["lost"], unseen["turns"]) == (0.0, 2, None)


def test_the_table_has_a_row_per_split_and_type(outcomes: dict[Key, Outcome]) -> None:
    console = Console(width=80, record=True)
    console.print(summary_table(summarise(PANEL, SEEDS, outcomes, IDENTITY)))
    text = console.export_text()
    for name in ("valid_seen", " look", " put", "valid_unseen", "50.0 ± 23.6"):
        assert name in text
