"""A request to stop: where it takes effect, and what a second one does."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from verl_ext.stopping import Stopped, StopSwitch


def test_before_the_loop_a_signal_ends_at_once() -> None:
    stop = StopSwitch()
    with pytest.raises(KeyboardInterrupt):
        stop.on_signal(signal.SIGTERM)
    assert (stop.reason, stop.exit_status, stop.insisted) == ("SIGTERM", 143, False)


def test_a_deferred_signal_waits_for_what_may_be_stopped(capfd: pytest.CaptureFixture[str]) -> None:
    stop, done = StopSwitch(), []

    def step() -> None:
        with stop.deferred():
            stop.on_signal(signal.SIGINT)
            done.append("update")
            with stop.allowed():
                done.append("rollouts")

    with pytest.raises(KeyboardInterrupt):
        step()
    assert done == ["update"]
    assert stop.exit_status == 130
    assert capfd.readouterr().err.startswith("rsipo: Ctrl-C: stopping as soon as this phase is done and saved")


def test_within_what_may_be_stopped_it_takes_effect_at_once() -> None:
    stop = StopSwitch()
    with stop.deferred():
        with pytest.raises(KeyboardInterrupt), stop.allowed():
            stop.on_signal(signal.SIGTERM)
        assert not stop.insisted


def test_a_second_signal_does_not_wait() -> None:
    stop = StopSwitch()
    with stop.deferred():
        stop.on_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            stop.on_signal(signal.SIGINT)
    assert stop.insisted


def test_an_alarm_asks_without_a_signal() -> None:
    stop = StopSwitch()
    stop.check()
    stop.request("a health alarm")
    with pytest.raises(KeyboardInterrupt):
        stop.check()
    assert stop.exit_status == 2


def test_while_the_run_is_taken_down_signals_are_ignored() -> None:
    stop = StopSwitch()
    stop.finish()
    stop.on_signal(signal.SIGTERM)
    assert stop.reason is None


def test_the_message_says_where_it_was_saved() -> None:
    assert str(Stopped("SIGTERM", 7, Path("c/global_step_7"))) == (
        "stopped by SIGTERM after step 7, saved in c/global_step_7"
    )
    assert str(Stopped("Ctrl-C", 0, None)) == "stopped by Ctrl-C after step 0, nothing to save"
