"""The metrics file survives crashes and resumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsipo.problems import UserError
from rsipo.run_files import MetricsLog, read_metrics


def test_rows_come_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, resumed_step=None)
    log.write(1, {"a": 0.5})
    log.write(2, {"a": 1.5})
    assert read_metrics(path) == [{"step": 1, "a": 0.5}, {"step": 2, "a": 1.5}]


def test_a_resumed_run_forgets_what_it_will_do_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, resumed_step=None)
    for step in (0, 1, 2, 3):
        log.write(step, {})
    path.write_text(path.read_text() + '{"step": 4, "cut')
    MetricsLog(path, resumed_step=2).write(3, {"again": True})
    assert read_metrics(path) == [{"step": 0}, {"step": 1}, {"step": 2}, {"step": 3, "again": True}]


def test_an_evaluation_that_was_made_up_for_joins_its_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, resumed_step=None)
    log.write(1, {"a": 1})
    log.write(2, {"a": 2})
    resumed = MetricsLog(path, resumed_step=2)
    assert resumed.last == {"step": 2, "a": 2}
    resumed.write(2, {"b": 3})
    resumed.write(3, {"a": 4})
    assert read_metrics(path) == [{"step": 1, "a": 1}, {"step": 2, "a": 2, "b": 3}, {"step": 3, "a": 4}]


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl line 2 is not JSON"):
        read_metrics(path)
