"""``rsipo rollout`` on real games, by the scripted policy that needs no model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rsipo.evaluation.rollout_command import RolloutOptions, rollout_command
from rsipo.problems import UserError


@pytest.fixture
def words(games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("RSIPO_WORK", str(tmp_path / "work"))
    return ["alfworld", "tiny-policy", f"env.data_root={games}"]


def transcripts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]


@pytest.mark.ray
def test_episodes_are_shown_turn_by_turn_and_written(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = RolloutOptions(
        script="walkthrough", split="valid_seen", tasks=2, rollouts=2, seed=5, out=out, view="episodes"
    )
    assert rollout_command(words, options) == 0
    episodes = transcripts(out)
    assert len({episode["task_id"] for episode in episodes}) == 2
    assert sorted(episode["seed"] for episode in episodes) == [5, 5, 6, 6]
    assert all(episode["success"] for episode in episodes)
    shown = capsys.readouterr().out
    for episode in episodes:
        assert f"{episode['task_id']} · seed {episode['seed']}" in shown
        assert all(turn["response"] in shown for turn in episode["transcript"])
        assert episode["reward"] == 10.0
        assert all(episode["instruction"] in turn["prompt"] for turn in episode["transcript"])
    with pytest.raises(UserError, match="holds episodes already: name another folder"):
        rollout_command(words, options)


@pytest.mark.ray
def test_the_live_view_shows_one_episode_after_the_other(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = RolloutOptions(script="nonsense", split="valid_seen", tasks=2, out=out)
    assert rollout_command([*words, "env.max_turns=3"], options) == 0
    shown = capsys.readouterr().out.splitlines()
    for episode in transcripts(out):
        start = shown.index(f"{episode['task_id']} · seed 0")
        turns = [line[:3] for line in shown[start : start + 30] if line.startswith("[")]
        assert turns[:3] == ["[1]", "[2]", "[3]"]
        end = next(line for line in shown[start:] if "turns, reward" in line)
        assert end == "not won in 3 turns, reward -0.3"
    assert sum("(not in the format)" in line for line in shown) == 6


def test_an_unknown_split_is_one_line(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no split 'validation'"):
        rollout_command(words, RolloutOptions(script="walkthrough", split="validation", out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()
