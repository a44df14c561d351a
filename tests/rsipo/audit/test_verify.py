from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from rsipo.audit import recompute, rules, verify
from rsipo.audit.command import verify_command
from rsipo.audit.verify import verify_run
from rsipo.problems import UserError
from rsipo.split import split

STATISTICS = "statistics.jsonl"


def test_a_clean_run_verifies_from_either_folder(audit, capsys):
    for folder in (audit, audit.parent, str(audit.parent)):
        report = verify_run(folder)
        assert report.ok, str(report)
        assert (report.steps, report.tasks) == (4, 48)
    assert verify_command(audit.parent) == 0
    assert "4 steps, 48 tasks recomputed, no difference" in capsys.readouterr().out


def test_the_fixture_holds_every_kind_of_case(audit):
    records = [json.loads(line) for path in audit.glob("step-*") for line in path.read_text().splitlines()]
    assert any(r["evidence_index"] is None for r in records)
    assert any(r["skill"] and not r["skill"]["valid"] for r in records)
    assert any(r["state_matched"] is False for r in records)
    assert any(r["gain"] is not None and r["shrinkage_weight"] > 0 for r in records)
    assert any(p["status"] != "ok" for r in records for p in r["replays"])


@pytest.mark.parametrize("module", [verify, recompute, rules])
def test_the_verifier_shares_no_code_with_the_estimators(module):
    tree = ast.parse(Path(module.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & {"rsipo.estimators", "rsipo.type_statistics"}


# ---------------------------------------------------------------------------------------------- tampering


def edit(path: Path, line: int, change, *, rehash: bool = True) -> None:
    """Change one line; with ``rehash`` also the recorded hashes, as one who wants to hide it would."""
    lines = path.read_text().splitlines()
    record = json.loads(lines[line - 1])
    change(record)
    lines[line - 1] = json.dumps(record)
    path.write_text("\n".join(lines) + "\n")
    if rehash:
        drop_hashes(path.parent)


def drop_hashes(audit: Path) -> None:
    path = audit / STATISTICS
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**r, "records_sha256": None, "settings_sha256": None}) + "\n" for r in rows))


def find(audit: Path, wanted) -> tuple[Path, int, dict]:
    for path in sorted(audit.glob("step-*")):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if wanted(record := json.loads(line)):
                return path, number, record
    raise AssertionError("no such record")


def measured(record: dict) -> bool:
    """A task with a gain, decided by its own outcomes, with nothing lost."""
    played = [*record["rollouts"], *record["replays"]]
    return bool(record["shrinkage_weight"]) and all(episode["status"] == "ok" for episode in played)


def other(value):
    """A different value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return {"evidence": "control", "control": "evidence", "ok": "failed", "": "why"}.get(value, value[:-1] + "#")
    if value is None:
        return 0.5
    return value + (1 if isinstance(value, int) else 1e-3)


ESTIMATES = [
    "gain",
    "noise_variance",
    "type_mean",
    "type_variance",
    "shrinkage_weight",
    "shrunk_gain",
    "skill_reward",
    "trust",
    "state_matched",
]


@pytest.mark.parametrize("field", ["step", "task_type", "evidence_index", *ESTIMATES])
def test_each_field_of_a_task(audit, field):
    path, line, record = find(audit, lambda r: measured(r) and 0 < r["trust"] < 2)
    edit(path, line, lambda r: r.update({field: other(r[field]) if field != "task_type" else "look"}))
    found = verify_run(audit).differences
    assert any(d.file == path.name and d.line == line for d in found)
    if field in ESTIMATES or field in ("step", "evidence_index"):
        (difference,) = [d for d in found if d.field == field and d.line == line and d.file == path.name]
        assert difference.recorded == pytest.approx(other(record[field]))
        if field in ESTIMATES:
            assert difference.recomputed == pytest.approx(record[field])


@pytest.mark.parametrize("field", ["gain", "noise_variance", "shrinkage_weight", "type_variance"])
def test_null_is_not_zero(audit, field):
    path, line, _ = find(audit, lambda r: r["gain"] is None and r["type_variance"] is not None)
    edit(path, line, lambda r: r.update({field: 0.0 if r[field] is None else None}))
    assert [d.field for d in verify_run(audit).differences if d.line == line and d.file == path.name] == [field]


@pytest.mark.parametrize(
    ("role", "field"),
    [
        *(("evidence", f) for f in ("index", "role", "status", "fingerprint")),
        *(("control", f) for f in ("index", "role", "status", "success", "fingerprint")),
    ],
)
def test_each_field_of_a_rollout(audit, role, field):
    path, line, record = find(audit, measured)
    wanted = [record["evidence_index"]] if role == "evidence" else range(4)
    position = next(n for n in wanted if record["rollouts"][n]["role"] == role)
    edit(path, line, lambda r: r["rollouts"][position].update({field: other(r["rollouts"][position][field])}))
    assert any(d.file == path.name and d.line == line for d in verify_run(audit).differences)


@pytest.mark.parametrize("field", ["status", "success", "turns", "fingerprint", "state_matched"])
def test_each_field_of_a_replay(audit, field):
    path, line, record = find(audit, lambda r: measured(r) and any(p["success"] for p in r["replays"]))
    position = next(n for n, p in enumerate(record["replays"]) if p["success"])
    edit(path, line, lambda r: r["replays"][position].update({field: other(r["replays"][position][field])}))
    assert any(d.file == path.name and d.line == line for d in verify_run(audit).differences)


def test_turns_of_a_successful_control(audit):
    path, line, record = find(
        audit, lambda r: measured(r) and any(x["success"] and x["role"] == "control" for x in r["rollouts"])
    )
    position = next(n for n, x in enumerate(record["rollouts"]) if x["success"] and x["role"] == "control")
    edit(
        path,
        line,
        lambda r: r["rollouts"][position].update(turns=r["rollouts"][position]["turns"] - 1, invalid_actions=0),
    )
    fields = {d.field for d in verify_run(audit).differences if d.file == path.name and d.line == line}
    assert {"gain", "noise_variance", "skill_reward"} <= fields


@pytest.mark.parametrize(
    ("valid", "change"),
    [
        (True, {"valid": False}),
        (True, {"text": " "}),
        (True, {"reason": "no_json"}),
        (True, {"masked_tokens": 0}),
        (True, {"tokens": 3}),
        (False, {"valid": True, "text": "Look in the cabinet first.", "reason": ""}),
        (False, {"reason": ""}),
        (False, {"masked_tokens": 39}),
        (False, {"tokens": 41}),
    ],
)
def test_each_field_of_a_skill(audit, valid, change):
    path, line, _ = find(audit, lambda r: r["skill"] and r["skill"]["valid"] is valid)
    edit(path, line, lambda r: r["skill"].update(change))
    assert any(d.file == path.name and d.line == line for d in verify_run(audit).differences)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["rollouts"].pop(),
        lambda r: r["replays"].pop(),
        lambda r: r["replays"].append(r["replays"][0]),
        lambda r: r.update(skill=None),
        lambda r: r.update(evidence_index=None),
        lambda r: r["rollouts"][0].update(turns=21),
        lambda r: r["rollouts"][0].update(invalid_actions=99),
        lambda r: r["rollouts"][0].update(fingerprint=None),
        lambda r: r["replays"][0].update(fingerprint=None, state_matched=None),
        lambda r: r["replays"][0].update(status="timeout", success=True),
        lambda r: [x.update(role="control") for x in r["rollouts"]],
    ],
)
def test_broken_rules(audit, change):
    path, line, _ = find(audit, measured)
    edit(path, line, change)
    assert any(d.file == path.name and d.line == line for d in verify_run(audit).differences)


def test_a_failed_trajectory_is_not_taken_where_a_success_exists(audit):
    def mixed(r):
        evidence = [x for x in r["rollouts"] if x["role"] == "evidence" and x["status"] == "ok"]
        return {x["success"] for x in evidence} == {True, False}

    path, line, record = find(audit, mixed)
    failure = next(x["index"] for x in record["rollouts"] if x["role"] == "evidence" and not x["success"])
    edit(path, line, lambda r: r.update(evidence_index=failure))
    (difference,) = verify_run(audit).differences
    assert difference.field == "evidence_index"
    assert "successes first" in str(difference)


@pytest.mark.parametrize("field", ["gain", "gain_squared", "noise_variance", "weight"])
@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_each_moment_of_each_step(audit, field, step):
    edit(audit / STATISTICS, step, lambda r: r["types"]["pick"].update({field: r["types"]["pick"][field] + 1e-4}))
    found = verify_run(audit).differences
    assert any(d.file == STATISTICS and d.line == step and d.field == f"types.pick.{field}" for d in found)


def test_the_commit_flag_and_the_types(audit):
    edit(audit / STATISTICS, 3, lambda r: r.update(committed=True))
    assert any(d.file == STATISTICS and d.line == 3 for d in verify_run(audit).differences)
    edit(audit / STATISTICS, 3, lambda r: r.update(committed=False))
    assert verify_run(audit).ok
    edit(audit / STATISTICS, 3, lambda r: r["types"].pop("heat"))
    assert any(d.field == "types.heat" and d.recorded == "missing" for d in verify_run(audit).differences)


def test_staged_statistics_carried_forward_are_found(audit):
    """An implementation that keeps the failed step's statistics would write these lines."""
    rows = [json.loads(line) for line in (audit / STATISTICS).read_text().splitlines()]
    wrong = dict(rows[3]["types"])
    edit(audit / STATISTICS, 3, lambda r: r.update(types=wrong))
    assert any(d.file == STATISTICS and d.line == 3 for d in verify_run(audit).differences)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alpha", 0.4),
        ("max_turns", 25),
        ("eta", 0.2),
        ("kappa", 1.0),
        ("omega_max", 0.9),
        ("rho", 0.3),
        ("format_reward", 0.0),
        ("num_rollouts", 6),
        ("num_replays", 4),
    ],
)
def test_each_setting(audit, name, value):
    path = audit / "settings.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    drop_hashes(audit)
    assert not verify_run(audit).ok


@pytest.mark.parametrize(
    ("target", "field"),
    [("rollouts", "invalid_actions"), ("rollouts", "skill_valid"), ("skill", "text")],
)
def test_what_no_formula_uses_is_held_by_the_hash(audit, target, field):
    path, line, _ = find(audit, measured)

    def change(record):
        part = {"rollouts": record["rollouts"][0], "skill": record["skill"]}[target]
        part[field] = 1 - part[field] if field == "invalid_actions" else other(part[field])

    edit(path, line, change, rehash=False)
    (difference,) = verify_run(audit).differences
    assert difference.file == path.name
    assert difference.field.startswith("sha256")


# ---------------------------------------------------------------------------------------------- damage


def test_a_missing_step_file(audit):
    (audit / "step-000002.jsonl").unlink()
    (difference,) = verify_run(audit).differences
    assert str(difference) == "step-000002.jsonl file: recorded missing, should be present"


def test_a_missing_last_step_file(audit):
    (audit / "step-000004.jsonl").unlink()
    assert [d.file for d in verify_run(audit).differences] == ["step-000004.jsonl"]


def test_a_missing_statistics_line(audit):
    path = audit / STATISTICS
    path.write_text(
        "".join(path.read_text().splitlines(keepends=True)[:1] + path.read_text().splitlines(keepends=True)[2:])
    )
    assert [d.field for d in verify_run(audit).differences] == ["step 2"]


def test_no_statistics_at_all(audit):
    (audit / STATISTICS).unlink()
    fields = [d.field for d in verify_run(audit).differences if d.file == STATISTICS]
    assert fields == ["file", "step 1", "step 2", "step 3", "step 4"]


def test_doubled_and_unordered_statistics(audit):
    path = audit / STATISTICS
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[1]]))
    assert any(d.line == 5 and d.recorded == 2 for d in verify_run(audit).differences)
    path.write_text("".join([lines[1], lines[0], *lines[2:]]))
    assert any(d.recomputed == "in rising order" for d in verify_run(audit).differences)


@pytest.mark.parametrize("junk", ['{"step": 2,', "[]", "", "null", '{"step": NaN}'])
@pytest.mark.parametrize("name", ["step-000002.jsonl", STATISTICS])
def test_malformed_lines_are_reported_with_file_and_line(audit, junk, name):
    path = audit / name
    lines = path.read_text().splitlines()
    lines[1] = junk
    path.write_text("\n".join(lines) + "\n")
    found = verify_run(audit).differences
    assert any(d.file == name and d.line == 2 for d in found)
    assert all("\n" not in str(d) for d in found)


def test_a_torn_last_line(audit):
    path = audit / "step-000004.jsonl"
    path.write_text(path.read_text()[:-40])
    assert any(d.file == path.name and d.line == 12 for d in verify_run(audit).differences)


def test_missing_and_mistyped_fields_are_named(audit):
    edit(audit / "step-000001.jsonl", 2, lambda r: (r.pop("trust"), r["rollouts"][1].update(turns="3")))
    text = str(verify_run(audit))
    assert "step-000001.jsonl:2 trust: recorded missing, should be Field required" in text
    assert "step-000001.jsonl:2 rollouts.1.turns: recorded 3, should be Input should be a valid integer" in text


def test_not_utf8(audit):
    (audit / "step-000001.jsonl").write_bytes(b"\xff\xfe")
    assert any(d.recomputed == "UTF-8 text" for d in verify_run(audit).differences)


def test_a_folder_where_a_file_should_be(audit):
    (audit / "step-000001.jsonl").unlink()
    (audit / "step-000001.jsonl").mkdir()
    assert any(d.recomputed == "a readable file" for d in verify_run(audit).differences)
    (audit / "settings.json").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"settings\.json: "):
        verify_run(audit)


def test_a_gap_is_one_difference(audit):
    """A stray file of a far step must not make a difference for every step before it."""
    (audit / "step-999999.jsonl").write_text("")
    report = verify_run(audit)
    assert report.steps == 5
    assert [d.field for d in report.differences] == ["steps 5 to 999998", "line", "step 999999"]


def test_no_audit_at_all(tmp_path, audit):
    with pytest.raises(UserError, match="no audit here"):
        verify_run(tmp_path / "elsewhere")
    (audit / "settings.json").write_text('{"alpha": 0.5}')
    with pytest.raises(UserError, match=r"settings\.json: max_turns: Field required"):
        verify_run(audit)


def test_nothing_to_verify_yet(tmp_path, settings):
    from rsipo.audit.records import AuditWriter

    AuditWriter(tmp_path / "rsipo-audit", settings)
    with pytest.raises(UserError, match="no step yet"):
        verify_run(tmp_path)


def test_the_command_reports_every_difference_and_fails(audit, capsys):
    edit(audit / "step-000001.jsonl", 1, lambda r: r.update(trust=1.987654321))
    assert verify_command(audit) == 1
    out = capsys.readouterr().out
    assert "step-000001.jsonl:1 trust: recorded 1.987654321, should be " in out
    assert "1 differences" in out


def equals(record: dict) -> bool:
    """Two usable evidence rollouts with the same outcome: only the drawn order says which one is taken."""
    usable = [r for r in record["rollouts"] if r["role"] == "evidence" and r["status"] == "ok"]
    return len(usable) == 2 and usable[0]["success"] == usable[1]["success"]


def test_the_other_of_two_equal_trajectories(audit):
    path, line, record = find(audit, equals)
    other_index = next(i for i in record["evidence_order"] if i != record["evidence_index"])
    edit(path, line, lambda r: r.update(evidence_index=other_index))
    assert any(d.field == "evidence_index" for d in verify_run(audit).differences)


@pytest.mark.parametrize("changed", ["order", "roles", "seed"])
def test_a_split_that_was_not_drawn_from_the_seed(audit, changed):
    def change(record: dict) -> None:
        if changed == "seed":
            record["run_seed"] = 1
        elif changed == "order":
            record["evidence_order"].reverse()
        else:
            for rollout in record["rollouts"]:
                rollout["role"] = {"evidence": "control", "control": "evidence"}[rollout["role"]]

    # Under another seed some tasks would have the same split; this one has not.
    path, line, _ = find(
        audit, lambda r: split(4, seed=1, step=r["step"], task_id=r["task_id"]).evidence != tuple(r["evidence_order"])
    )
    edit(path, line, change)
    fields = {d.field for d in verify_run(audit).differences}
    assert fields & {"evidence_order", "rollouts[].role"}


def test_records_of_before_the_seed_was_kept_still_verify(audit):
    drop_hashes(audit)
    for path in sorted(audit.glob("step-*.jsonl")):
        for line in range(1, len(path.read_text().splitlines()) + 1):
            edit(path, line, lambda r: (r.pop("run_seed"), r.pop("evidence_order")), rehash=False)
    assert verify_run(audit).ok


def test_a_task_that_is_there_twice(audit):
    path = audit / "step-000002.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[0]]) + "\n")
    assert any(d.field.startswith("task_id ") and d.recorded == "2 lines" for d in verify_run(audit).differences)


def test_a_last_step_removed_with_its_statistics(audit):
    metrics = audit.parent / "rsipo" / "metrics.jsonl"
    metrics.parent.mkdir()
    metrics.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(5)))
    assert verify_run(audit).ok
    (audit / "step-000004.jsonl").unlink()
    lines = (audit / "statistics.jsonl").read_text().splitlines(keepends=True)
    (audit / "statistics.jsonl").write_text("".join(lines[:-1]))
    assert [d.field for d in verify_run(audit).differences] == ["step 4"]
