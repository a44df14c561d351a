"""``rsipo rollout`` on real games, by the scripted policy that needs no model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rsipo.evaluation.rollout_command import RolloutOptions, rollout_command, watching
from rsipo.problems import UserError
from rsipo.run_console import RunConsole


@pytest.fixture
def words(games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("RSIPO_WORK", str(tmp_path / "work"))
    return ["alfworld", "tiny-policy", f"env.data_root={games}"]


@pytest.mark.ray
def test_turns_are_shown_as_they_end_and_episodes_written_in_full(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = RolloutOptions(script="walkthrough", split="valid_seen", tasks=2, rollouts=2, seed=5, out=out)
    assert rollout_command(words, options) == 0
    episodes = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    assert len({episode["task_id"] for episode in episodes}) == 2
    assert sorted(episode["seed"] for episode in episodes) == [5, 5, 6, 6]
    assert all(episode["success"] and episode["reward"] == 10.0 for episode in episodes)
    assert all(episode["instruction"] in turn["prompt"] for episode in episodes for turn in episode["transcript"])

    live = capsys.readouterr().out
    for episode in episodes:  # in the order in which they were played: one after the other
        _, _, live = live.partition(f"{episode['task_id']} · seed {episode['seed']}\n{episode['instruction']}\n")
        for number, turn in enumerate(episode["transcript"], start=1):
            _, found, live = live.partition(f"[{number}] {turn['observation']}\n    {turn['response']}\n")
            assert found
        assert live.startswith(f"{episode['final_observation']}\nwon in {episode['turns']} turns, reward 10\n")

    with pytest.raises(UserError, match="holds episodes already: name another folder"):
        rollout_command(words, options)

    console = RunConsole(tmp_path / "log")
    watch = watching("episodes")
    assert watch.turn is None
    assert watch.episode is not None
    watch.episode(console, refused(episodes[0]))
    console.close()
    shown = capsys.readouterr().out
    assert "(not in the format)" in shown
    assert f"(the environment does not know {episodes[0]['transcript'][1]['action']!r})" in shown
    assert shown.endswith(f"not won in {episodes[0]['turns']} turns, reward -0.1\n")


def refused(episode: dict[str, Any]) -> dict[str, Any]:
    """The same episode, had its first response been in no format and its second action unknown."""
    first, second, *rest = episode["transcript"]
    turns = [{**first, "valid": False}, {**second, "admissible": False}, *rest]
    return {**episode, "success": False, "reward": -0.1, "transcript": turns}


def test_an_unknown_split_is_one_line(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no split 'validation'"):
        rollout_command(words, RolloutOptions(script="walkthrough", split="validation", out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()
