"""``rsipo rollout`` on real games, by the scripted policy that needs no model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rsipo.evaluation.rollout_command import RolloutOptions, rollout_command
from rsipo.problems import UserError


@pytest.fixture
def words(games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("RSIPO_WORK", str(tmp_path / "work"))
    return ["alfworld", "tiny-policy", f"env.data_root={games}"]


@pytest.mark.ray
def test_episodes_are_shown_turn_by_turn_and_written(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = RolloutOptions(script="walkthrough", split="valid_seen", tasks=2, rollouts=2, seed=5, out=out)
    assert rollout_command(words, options) == 0
    episodes = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    assert len({episode["task_id"] for episode in episodes}) == 2
    assert sorted(episode["seed"] for episode in episodes) == [5, 5, 6, 6]
    assert all(episode["success"] for episode in episodes)
    shown = capsys.readouterr().out
    for episode in episodes:
        assert f"{episode['task_id']} · seed {episode['seed']} · won in {episode['turns']} turns" in shown
        assert all(turn["response"] in shown for turn in episode["transcript"])
    with pytest.raises(UserError, match="holds episodes already: name another folder"):
        rollout_command(words, options)


def test_an_unknown_split_is_one_line(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no split 'validation'"):
        rollout_command(words, RolloutOptions(script="walkthrough", split="validation", out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()
