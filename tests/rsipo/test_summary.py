"""What a run prints."""

from __future__ import annotations

from pathlib import Path

from agent_system.rollout.types import Episode
from rsipo.run_console import RunConsole
from rsipo.run_files import RunFiles
from rsipo.summary import loss_lines, print_step, print_summary


def lost(error: str, status: str = "failed") -> Episode:
    return Episode("task", 0, status, False, [], "", error=error)  # type: ignore[arg-type]


def test_each_reason_of_a_loss_is_said_once_with_its_count() -> None:
    fine = Episode("task", 0, "ok", True, [], "f")
    results = [[fine, lost("BadTask: game.tw-pddl is truncated")], [lost("BadTask: game.tw-pddl is truncated")]]
    assert loss_lines(results) == ["2 x failed: BadTask: game.tw-pddl is truncated"]
    assert loss_lines([[fine]]) == []
    many = [[lost(f"reason {number}") for number in range(8)]]
    assert len(loss_lines(many)) == 6
    assert loss_lines(many)[-1] == "and 3 other reasons"


def test_the_step_line_and_the_table_hold_what_was_measured(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    console = RunConsole(files.log)
    rows = [
        {"step": 0, "evaluation/success": 0.25, "evaluation/episodes": 120, "evaluation/turns": 11.0},
        {"step": 1, "student/success": 0.5, "check/gain": -0.031, "seconds/rollouts": 4.0, "update/applied": False},
        {"step": 2, "student/success": 0.75, "check/gain": 0.1, "seconds/rollouts": 5.0},
    ]
    for row in rows:
        print_step(console, row["step"], 2, row)
    print_summary(console, rows, files)
    console.close()
    text = files.log.read_text()
    assert "step 1/2 · student 50% · gain -0.031 · 4.0 s · UPDATE SKIPPED" in text
    assert "step 0/2 · held-out 25.0%" in text
    for cell in ("50.0%", "75.0%", "-0.031", "25.0%", "120", str(tmp_path)):
        assert cell in text
