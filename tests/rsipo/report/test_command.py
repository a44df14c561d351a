from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rsipo.problems import UserError
from rsipo.report.command import PAGE, report_command


def test_a_report_lies_in_the_run_unless_told_otherwise(
    small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = Path(shutil.copytree(small_run, tmp_path / "run"))
    report_command([run], None)
    assert (run / "report" / PAGE).read_text().startswith("<!doctype html>")
    assert (run / "report" / "trust.png").is_file()
    assert not list((run / "report").glob(".*"))
    assert f"{run / 'report' / PAGE}" in capsys.readouterr().out


def test_a_missing_library_is_named(small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named fake: jinja2 cannot be imported."""
    for name in [name for name in sys.modules if name.startswith("rsipo.report.") and not name.endswith(".command")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UserError, match=r"needs jinja2, which is not installed: pip install -e '\.\[report\]'"):
        report_command([small_run], tmp_path)


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rsipo.cli", "report", str(tmp_path / "nothing")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stderr == f"rsipo: {tmp_path / 'nothing'} is not a run: there is no rsipo/metrics.jsonl in it\n"
