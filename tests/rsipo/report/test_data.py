from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from rsipo.audit.records import transcripts_file
from rsipo.audit.verify import verify_run
from rsipo.problems import UserError
from rsipo.report.data import load_run, load_runs, task_row


@pytest.fixture
def run(small_run: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(small_run, tmp_path / "small"))


def test_the_synthetic_run_is_a_run_whose_audit_holds(small_run: Path) -> None:
    report = verify_run(small_run)
    assert report.ok, str(report)
    assert (report.steps, report.tasks) == (6, 60)


def test_frames_hold_every_step_and_every_task(small_run: Path) -> None:
    run = load_run(small_run)
    assert run.name == "small"
    assert list(run.metrics.index) == [0, 1, 2, 3, 4, 5, 6]
    assert list(run.steps.index) == [1, 2, 3, 4, 5, 6]
    assert len(run.tasks) == len(run.records) == 60
    assert run.tasks["step"].tolist() == [record.step for record in run.records]
    for record, row in zip(run.records, run.tasks.to_dict("records"), strict=True):
        assert row["task_id"] == record.task_id
        assert row["trust"] == record.trust
        if record.evidence_index is not None:
            transcript = run.transcripts[record.step, record.task_id]
            assert transcript.index == record.evidence_index
            assert len(transcript.turns) == record.rollouts[record.evidence_index].turns
    assert len(run.transcripts) == sum(record.evidence_index is not None for record in run.records)


def test_a_metric_is_a_series_of_the_steps_that_have_it(small_run: Path) -> None:
    run = load_run(small_run)
    assert list(run.series("student/success").index) == [1, 2, 3, 4, 5, 6]
    assert run.series("evaluation/success", training=False).index[0] == 0
    assert 0 not in run.series("evaluation/success").index
    assert run.series("no/such").empty


def test_rows_say_who_succeeds_more_often_and_how_far_a_task_got(small_run: Path) -> None:
    record = next(r for r in load_run(small_run).records if r.gain is not None and len(r.replays) == 4)
    control = [r.model_copy(update={"status": "ok", "success": False}) for r in record.rollouts]
    won, lost, gone = (
        {"status": "ok", "success": True},
        {"status": "ok", "success": False},
        {"status": "failed", "success": False},
    )

    def row(*replays: dict, **changes: object) -> dict:
        played = [old.model_copy(update=new) for old, new in zip(record.replays, replays, strict=True)]
        return task_row(record.model_copy(update={"rollouts": control, "replays": played, **changes}))

    assert row(won, lost, lost, lost)["teacher"] == "more"
    assert row(lost, lost, lost, lost)["teacher"] == "equal"
    one_of_three = row(won, gone, lost, lost)
    assert (one_of_three["replay_rate"], one_of_three["control_rate"]) == (pytest.approx(1 / 3), 0.0)
    assert row(won, won, won, won, gain=None)["teacher"] is None
    assert row(won, won, won, won, state_matched=False)["status"] == "mismatch"
    invalid = record.skill.model_copy(update={"valid": False, "reason": "too_short"})
    failed = row(gone, gone, gone, gone, skill=invalid, gain=None, skill_reward=-0.2, state_matched=None)
    assert failed["status"] == "invalid"
    assert [failed[stage] for stage in ("parsed", "valid", "replayed", "matched", "rewarded")] == [True] + [False] * 4
    assert task_row(record.model_copy(update={"skill": None, "replays": []}))["status"] == "none"


def test_a_method_without_a_check_has_metrics_only(plain_run: Path) -> None:
    run = load_run(plain_run)
    assert run.tasks.empty
    assert run.check is None
    assert run.config["method"]["name"] == "grpo"
    assert len(run.steps) == 4


def test_a_run_older_than_transcripts_has_none(run: Path) -> None:
    for path in run.glob("rsipo-audit/transcripts-*"):
        path.unlink()
    assert load_run(run).transcripts == {}


def test_runs_of_one_name_are_told_apart_and_a_run_given_twice_is_one(run: Path, small_run: Path) -> None:
    assert [r.name for r in load_runs([run, small_run])] == [
        f"{run.parent.name}/small",
        f"{small_run.parent.name}/small",
    ]
    assert [r.name for r in load_runs([run, run])] == ["small"]


def test_what_is_no_run_is_said(tmp_path: Path, plain_run: Path) -> None:
    with pytest.raises(UserError, match=r"is not a run: there is no rsipo/metrics\.jsonl"):
        load_run(tmp_path)
    empty = Path(shutil.copytree(plain_run, tmp_path / "empty"))
    (empty / "rsipo/metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="has not finished a step"):
        load_run(empty)


def test_damage_is_named_with_its_place(run: Path) -> None:
    step = run / "rsipo-audit/step-000002.jsonl"
    whole = step.read_text()
    lines = whole.splitlines()
    record = json.loads(lines[3])
    record["trust"] = "high"
    step.write_text("\n".join([*lines[:3], json.dumps(record), *lines[4:]]) + "\n")
    with pytest.raises(UserError, match=r"step-000002\.jsonl:4 trust: Input should be a valid number"):
        load_run(run)
    step.write_text(whole)

    transcripts = run / "rsipo-audit" / transcripts_file(1)
    content = transcripts.read_bytes()
    for damaged in (content[:-20], content[:100] + b"\0\0\0" + content[103:], b"text", gzip.compress(b"\xff")):
        transcripts.write_bytes(damaged)
        with pytest.raises(UserError, match=r"transcripts-000001\.jsonl\.gz"):
            load_run(run)
    transcripts.write_bytes(content)

    (run / "rsipo/config.yaml").write_text("method: [")
    with pytest.raises(UserError, match=r"config\.yaml cannot be read"):
        load_run(run)


def test_a_line_torn_by_a_crash_is_left_out(run: Path) -> None:
    with (run / "rsipo/metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "stud')
    assert load_run(run).metrics.index.max() == 6
