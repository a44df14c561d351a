from __future__ import annotations

import gzip
import json

import pytest
from pydantic import ValidationError

from rsipo.audit.records import (
    AuditWriter,
    TaskRecord,
    TranscriptRecord,
    TurnRecord,
    step_file,
    step_of,
    transcripts_file,
)
from rsipo.audit.verify import verify_run
from rsipo.problems import UserError
from rsipo.type_statistics import TypeStatistics

FIELDS = [
    "step",
    "task_id",
    "task_type",
    "rollouts",
    "evidence_index",
    "skill",
    "replays",
    "state_matched",
    "gain",
    "noise_variance",
    "type_mean",
    "type_variance",
    "shrinkage_weight",
    "shrunk_gain",
    "skill_reward",
    "trust",
]


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_fields_are_those_of_the_contract(audit):
    record = next(r for r in lines(audit / step_file(1)) if r["replays"])
    assert list(record)[: len(FIELDS)] == FIELDS
    assert list(record["rollouts"][0]) == (
        ["index", "role", "status", "success", "turns", "invalid_actions", "fingerprint", "skill_valid", "skill_leaks"]
    )
    assert list(record["skill"]) == ["text", "valid", "reason", "tokens", "masked_tokens", "leaks_answer"]
    assert list(record["replays"][0]) == ["status", "success", "turns", "fingerprint", "state_matched"]
    statistics = lines(audit / "statistics.jsonl")
    assert [row["step"] for row in statistics] == [1, 2, 3, 4]
    assert [row["committed"] for row in statistics] == [True, True, False, True]
    assert list(statistics[0]["types"]["pick"]) == ["gain", "gain_squared", "noise_variance", "weight"]
    assert list(json.loads((audit / "settings.json").read_text())) == (
        ["alpha", "max_turns", "eta", "kappa", "omega_max", "rho", "format_reward", "num_rollouts", "num_replays"]
    )


def test_an_uncommitted_step_leaves_the_statistics_as_they_were(audit):
    statistics = lines(audit / "statistics.jsonl")
    assert statistics[2]["types"] == statistics[1]["types"]
    assert statistics[3]["types"] != statistics[2]["types"]


def test_numbers_survive_exactly(audit):
    path = audit / step_file(1)
    for line in path.read_text().splitlines():
        assert TaskRecord.model_validate_json(line).model_dump_json() == line


def test_step_files_sort_and_parse():
    assert step_file(1) == "step-000001.jsonl"
    from pathlib import Path

    assert step_of(Path("step-000012.jsonl")) == 12
    for other in ("step-12.jsonl", "step-000012.jsonl.tmp", "step-x.jsonl", "statistics.jsonl"):
        assert step_of(Path(other)) is None


def test_further_fields_may_follow_but_types_are_exact(audit):
    record = lines(audit / step_file(1))[0]
    assert (
        TaskRecord.model_validate_json(json.dumps(record | {"applied_trust": 1.0})).model_dump()["applied_trust"] == 1.0
    )
    for wrong in ({"step": "1"}, {"trust": "high"}, {"task_id": 3}):
        with pytest.raises(ValidationError):
            TaskRecord.model_validate_json(json.dumps(record | wrong))


def test_resume_forgets_later_steps_and_torn_lines(audit, settings):
    with (audit / "statistics.jsonl").open("a") as file:
        file.write('{"step": 5, "comm')
    writer = AuditWriter(audit, settings)
    writer.resume_from(2)
    assert [row["step"] for row in lines(audit / "statistics.jsonl")] == [1, 2]
    assert sorted(path.name for path in audit.glob("step-*")) == [step_file(1), step_file(2)]
    report = verify_run(audit)
    assert report.ok, str(report)
    assert (report.steps, report.tasks) == (2, 24)
    writer.resume_from(0)
    assert not list(audit.glob("step-*"))


def test_transcripts_lie_beside_the_records_and_go_with_their_step(audit, settings):
    turn = TurnRecord(observation="You see a mug.\n", action="take mug 1", valid=True, admissible=False)
    transcript = TranscriptRecord(
        task_id="game-1",
        index=2,
        instruction="put a mug",
        turns=[turn],
        final_observation="Nothing happens.",
        success=False,
    )
    writer = AuditWriter(audit, settings)
    for step in (2, 3):
        writer.write_transcripts(step, [transcript])
    path = audit / transcripts_file(2)
    content = path.read_bytes()
    assert TranscriptRecord.model_validate_json(gzip.decompress(content)) == transcript
    writer.write_transcripts(2, [transcript])
    assert path.read_bytes() == content
    assert verify_run(audit).ok
    writer.resume_from(2)
    assert [path.name for path in audit.glob("transcripts-*")] == [transcripts_file(2)]


def test_other_settings_are_refused_once_steps_exist(audit, settings):
    other = settings.model_copy(update={"alpha": 0.25})
    with pytest.raises(UserError, match=r"settings\.json differs"):
        AuditWriter(audit, other)
    AuditWriter(audit, settings).resume_from(0)
    AuditWriter(audit, other)


def test_a_failed_write_leaves_the_old_file(audit, settings, monkeypatch):
    """Named fake: fsync fails as on a full disk."""
    path = audit / step_file(1)
    before = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    writer = AuditWriter(audit, settings)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        writer.write_step(1, [])
    assert path.read_bytes() == before
    assert not list(audit.glob("*.tmp"))


def test_statistics_need_their_records_first(tmp_path, settings):
    writer = AuditWriter(tmp_path / "audit", settings)
    with pytest.raises(FileNotFoundError):
        writer.write_statistics(1, TypeStatistics(0.1), committed=True)
