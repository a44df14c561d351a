"""Phases are timed, show signs of life, and end at their deadline."""

from __future__ import annotations

import time

import pytest

from verl_ext.phases import PhaseClock, PhaseTimeout, deadline, process_memory


def test_seconds_and_shares_are_taken_once() -> None:
    clock = PhaseClock(lambda line: None, heartbeat_s=60)
    with clock.phase("a"):
        time.sleep(0.02)
    with clock.phase("b"):
        pass
    with clock.phase("a"):
        pass
    metrics = clock.take()
    assert metrics["seconds/a"] >= 0.02
    assert metrics["share/a"] + metrics["share/b"] == pytest.approx(1)
    assert clock.take() == {}


def test_a_heartbeat_says_what_runs_and_how_far_it_is() -> None:
    lines: list[str] = []
    clock = PhaseClock(lines.append, heartbeat_s=0.02)
    with clock.phase("rollouts"):
        clock.detail = "3/8 tasks"
        time.sleep(0.2)
    assert lines
    assert lines[-1].startswith("… rollouts (3/8 tasks): ")


def test_a_phase_ends_at_its_deadline() -> None:
    clock = PhaseClock(lambda line: None, heartbeat_s=0.02, deadline_s=0.05)

    def stuck() -> None:
        with clock.phase("update"):
            for _ in range(1000):
                time.sleep(0.01)

    with pytest.raises(PhaseTimeout, match="phase 'update' did not end"):
        stuck()


def test_what_hangs_is_looked_at_before_it_is_taken_down() -> None:
    told: list[str] = []
    clock = PhaseClock(lambda line: None, heartbeat_s=60, deadline_s=0.05, on_timeout=told.append)

    def stuck() -> None:
        with clock.phase("update"):
            clock.detail = "1/2 ranks"
            try:
                time.sleep(10)
            finally:
                told.append("taken down")

    with pytest.raises(PhaseTimeout, match=r"phase 'update' did not end within 0.05 s \(1/2 ranks\)"):
        stuck()
    assert told == ["update", "taken down"]


def test_a_finer_deadline_in_a_phase_counts_as_a_hang() -> None:
    told: list[str] = []
    clock = PhaseClock(lambda line: None, heartbeat_s=60, on_timeout=told.append)
    with pytest.raises(RuntimeError), clock.phase("weight_sync"):
        raise RuntimeError("not synced") from TimeoutError()
    with pytest.raises(ValueError, match="x"), clock.phase("weight_sync"):
        raise ValueError("x")
    assert told == ["weight_sync"]


def test_an_outer_deadline_outlives_an_inner_one() -> None:
    def nested() -> None:
        with deadline(0.1, TimeoutError("outer")):
            with deadline(60, TimeoutError("inner")):
                pass
            time.sleep(10)

    with pytest.raises(TimeoutError, match="outer"):
        nested()


def test_ctrl_c_stays_ctrl_c() -> None:
    clock = PhaseClock(lambda line: None, heartbeat_s=60, deadline_s=60)
    with pytest.raises(KeyboardInterrupt), clock.phase("update"):
        raise KeyboardInterrupt


def test_memory_of_this_process_is_reported() -> None:
    assert process_memory()["memory/driver_gib"] > 0
