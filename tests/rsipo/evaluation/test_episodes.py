"""The log of episodes: what is in a line, and what a stop at any moment leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_system.environments.base import Task
from rsipo.evaluation.episodes import EpisodeLog, Key, episode_record
from rsipo.problems import UserError

TASK = Task("valid_seen/a", "look_at_obj_in_light", "", "0" * 64)


@pytest.fixture
def record(make_episode):
    """``record(seed, **of the episode)``."""

    def make(seed: int = 1, **changes: object) -> dict:
        episode = make_episode(4, invalid=2, impossible=3)
        for name, value in changes.items():
            setattr(episode, name, value)
        return episode_record(Key("valid_seen", seed, TASK.task_id), TASK, episode)

    return make


def test_a_line_holds_outcome_counts_and_transcript(record) -> None:
    line = record()
    assert (line["success"], line["turns"], line["invalid_actions"], line["inadmissible_actions"]) == (True, 4, 1, 1)
    assert [turn["action"] for turn in line["transcript"]] == ["go 1", "go 2", "go 3", "go 4"]
    assert line["transcript"][1]["valid"] is False
    assert line["final_observation"] == "You win."


def test_a_lost_episode_is_no_success(record, tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path / "episodes.jsonl")
    log.append(record(status="timeout", error="turn 4 not over"))
    (outcome,) = log.outcomes.values()
    assert outcome.lost
    assert not outcome.success
    assert not outcome.cut_short
    log.append(record())
    (outcome,) = EpisodeLog(log.path).outcomes.values()
    assert outcome.success  # played again: the later line counts


def test_an_overflowing_prompt_is_cut_short_not_lost(record, tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path / "episodes.jsonl")
    log.append(record(success=False, error="PromptTooLong: …"))
    (outcome,) = log.outcomes.values()
    assert (outcome.lost, outcome.cut_short) == (False, True)


def test_a_torn_last_line_is_dropped_wherever_it_was_torn(record, tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path / "episodes.jsonl")
    for seed in (1, 2):
        log.append(record(seed))
    whole = log.path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in (first, first + 1, len(whole) // 2 + 50, len(whole) - 1):
        log.path.write_bytes(whole[:cut])
        resumed = EpisodeLog(log.path)
        assert {key.seed for key in resumed.outcomes} == {1}
        resumed.append(record(2))
        assert log.path.read_bytes() == whole


def test_a_broken_line_in_the_middle_is_named(record, tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path / "episodes.jsonl")
    log.append(record(1))
    with log.path.open("a") as file:
        file.write("{}\n")
    assert len(EpisodeLog(log.path).outcomes) == 1  # the last line: dropped
    with log.path.open("a") as file:
        file.write("nonsense\n" + json.dumps(record(2)) + "\n")
    with pytest.raises(UserError, match=r"line 2 is no episode .* remove that line"):
        EpisodeLog(log.path)


def test_any_text_can_be_written(record, tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path / "episodes.jsonl")
    log.append(record(final_observation="half a pair \ud83d, line\u2028separator, 猫"))
    log.append(record(2))
    lines = log.path.read_bytes().split(b"\n")
    assert json.loads(lines[0])["final_observation"].startswith("half a pair \ud83d, line\u2028separator, 猫")
    assert len(EpisodeLog(log.path).outcomes) == 2
