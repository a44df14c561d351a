"""Generated games in the real engine and in the unmodified ``AlfredTWEnv``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_system.environments.alfworld.check import check_games
from agent_system.environments.alfworld.generator import PRESETS, TASK_TYPES, generate_games

STOCK = """
import json, sys
from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv
config = {
    "env": {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6], "domain_randomization": False,
            "expert_type": "handcoded"},
    "general": {"training_method": "dqn"},
    "rl": {"training": {"max_nb_steps_per_episode": 50}},
    "dataset": {"data_path": sys.argv[1], "num_train_games": -1},
}
found = AlfredTWEnv(config, train_eval="train")
assert found.num_games == 6, found.num_games
env = found.init_env(batch_size=1)
played = set()
for _ in range(6):
    observation, info = env.reset()
    file = info["extra.gamefile"][0]
    for command in json.load(open(file))["walkthrough"]:
        assert not info["won"][0]
        assert command in info["admissible_commands"][0]
        observation, _, done, info = env.step([command])
    assert info["won"][0] and done[0], file
    played.add(file)
print("won", len(played))
"""


@pytest.mark.parametrize("size", PRESETS)
def test_walkthroughs_win_in_the_engine(size: str, tmp_path: Path) -> None:
    """One game per task type."""
    pytest.importorskip("agent_system.environments.alfworld.engine")
    generate_games(tmp_path, count=6, size=size, seed=11)
    report = check_games(tmp_path)
    assert report.problems == ()
    assert report.counts == {"train": dict.fromkeys(sorted(TASK_TYPES), 1)}


def test_stock_alfworld_plays_generated_games(tmp_path: Path) -> None:
    root = generate_games(tmp_path / "games", count=6, size="micro", seed=5).root
    home = tmp_path / "home"  # importing alfworld creates folders in the home
    home.mkdir()
    environment = os.environ | {"HOME": str(home), "ALFWORLD_DATA": str(root)}
    command = [sys.executable, "-c", STOCK, str(root / "json_2.1.1" / "train")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "won 6"
