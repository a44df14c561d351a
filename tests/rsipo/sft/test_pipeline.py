"""The whole stage as a user runs it: the script, the embedded policy on its rollout server, generated games, no LLM."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rsipo.problems import UserError
from rsipo.record_lines import read_records
from rsipo.sft.layout import PUBLISHED, SftFiles
from rsipo.sft.stages import collect_stage

pytestmark = pytest.mark.ray

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").is_file())


def test_from_the_script_to_parquet_and_again_after_a_stop(sft_games: Path, tmp_path: Path) -> None:
    out, override = tmp_path / "data", f"env.data_root={sft_games}"
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "VIRTUAL_ENV": sys.prefix,
        "OUTPUT_DIR": str(out),
        "NUM_TASKS": "6",
        "NUM_ROLLOUTS": "2",
    }
    environment.pop("MODEL_PATH", None)
    script = [ROOT / "scripts" / "sft" / "alfworld" / "prepare_data.sh", override]
    done = subprocess.run(
        ["bash", *map(str, script)], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "1 configuration(s), 0 problem(s)" in done.stdout
    files = SftFiles(out)
    assert all((out / name).is_file() for name in PUBLISHED)
    trajectories = list(read_records(files.trajectories))
    assert len(trajectories) == 12
    assert {record["rollout"] for record in trajectories} == {0, 1}
    assert all(step["response"] for record in trajectories for step in record["steps"])
    assert pq.read_table(files.train).num_rows + pq.read_table(files.validation).num_rows == 12

    # As if the process had been killed while it wrote its sixth episode.
    before = hashlib.sha256(files.trajectories.read_bytes()).hexdigest()
    log = files.rollouts / "episodes.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:5]) + lines[5][:-20])
    files.trajectories.unlink()
    with pytest.raises(UserError, match=r"rollouts is there already: go on with --resume \(RESUME=true\)"):
        collect_stage([override], out, rollouts=2, seed=0, resume=False, allow_lost=False)
    collect_stage([override], out, rollouts=2, seed=0, resume=True, allow_lost=False)
    assert log.read_bytes().startswith(b"".join(lines[:5]))
    assert hashlib.sha256(files.trajectories.read_bytes()).hexdigest() == before
