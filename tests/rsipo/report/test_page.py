from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rsipo.report.build import build_report
from rsipo.report.command import PAGE
from rsipo.report.data import load_run

VOID = {"meta", "br", "img", "input", "link", "wbr", "hr"}


class Page(HTMLParser):
    """Elements with their attributes and text; notes tags that do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.unbalanced: list[str] = []
        self._open: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append((tag, dict(attrs).get("id")))

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self._open or self._open.pop()[0] != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data):
        if self._open and self._open[-1][1]:
            self.texts[self._open[-1][1]] = self.texts.get(self._open[-1][1], "") + data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def files(small_run: Path) -> dict[str, bytes]:
    return build_report([small_run])


@pytest.fixture(scope="module")
def several(
    small_run: Path, plain_run: Path, synthetic: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> dict:
    """The files of a report of three runs: one with a name to escape, one with skipped updates, one without a check."""
    root = tmp_path_factory.mktemp("several")
    named = shutil.copytree(small_run, root / "<img src=x> $a_1$ & co")
    ablated = synthetic(root / "no-trust", steps=3, tasks=4, transcripts=False, trust="one", name="rsipo_no_trust")
    path = ablated / "rsipo/metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows[2:]:
        row |= {"update/applied": False, "opsd/loss": float("nan")}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return build_report([Path(named), ablated, plain_run])


@pytest.fixture(scope="module")
def page(files: dict[str, bytes]) -> Page:
    return Page(files[PAGE].decode())


def details(page: Page, name: str) -> list[dict]:
    return json.loads(gzip.decompress(base64.b64decode(page.texts[name])))


def test_the_page_is_one_well_formed_file_that_loads_nothing(files: dict[str, bytes], page: Page) -> None:
    assert page.unbalanced == []
    assert not [tag for tag, _ in page.elements if tag in ("img", "link", "iframe", "object", "embed")]
    for _, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "action", "data"):
            assert (attributes.get(name) or "#").startswith("#"), attributes
    style = re.search(r"<style>(.*?)</style>", files[PAGE].decode(), re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_only_the_reports_own_script_may_run(files: dict[str, bytes], page: Page) -> None:
    policy = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    executable = [script for script in page.all("script") if "type" not in script]
    assert len(executable) == 1
    source = re.search(r"<script>(.*?)</script>", files[PAGE].decode(), re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy


def test_markup_in_a_run_stays_text(page: Page, small_run: Path) -> None:
    """The run has skills, observations and actions that try to close the script element and to run one."""
    hostile = next(
        record
        for record in load_run(small_run).records
        if record.skill and "window.broken" in (record.skill.text or "")
    )
    shown = json.loads(page.texts["index"])["columns"]["skill"]
    assert hostile.skill.text in shown
    told = details(page, f"chunk-0-{hostile.step}")
    assert any(task["skill"] and task["skill"]["text"] == hostile.skill.text for task in told)


def test_names_of_runs_are_escaped(several: dict[str, bytes]) -> None:
    page = Page(several[PAGE].decode())
    assert page.unbalanced == []
    assert not page.all("img")
    assert json.loads(page.texts["index"])["runs"][0] == "<img src=x> $a_1$ & co"


def test_the_index_and_the_details_are_the_audits(page: Page, small_run: Path) -> None:
    run = load_run(small_run)
    index = json.loads(page.texts["index"])
    columns = index["columns"]
    assert {len(column) for column in columns.values()} == {60}
    told = [task for step in range(1, 7) for task in details(page, f"chunk-0-{step}")]
    for place, (record, task) in enumerate(zip(run.records, told, strict=True)):
        assert (columns["step"][place], columns["task_id"][place]) == (record.step, record.task_id)
        assert index["types"][columns["type"][place]] == record.task_type
        if record.gain is None:
            assert columns["gain"][place] is None
        else:
            assert columns["gain"][place] == pytest.approx(record.gain, abs=1e-6)
        for name in ("task_id", "gain", "shrinkage_weight", "shrunk_gain", "skill_reward", "trust", "evidence_index"):
            assert task[name] == getattr(record, name)
        assert [rollout["role"] for rollout in task["rollouts"]] == [rollout.role for rollout in record.rollouts]
        assert len(task["replays"]) == len(record.replays)
        transcript = run.transcripts.get((record.step, record.task_id))
        assert (task["transcript"] is None) == (transcript is None)
        if transcript is not None:
            assert [turn["action"] for turn in task["transcript"]["turns"]] == [
                turn.action for turn in transcript.turns
            ]
    assert json.loads(page.texts["checks"]) == [run.check.model_dump()]


def test_every_figure_is_a_png_as_well(files: dict[str, bytes], page: Page) -> None:
    images = {name for name in files if name.endswith(".png")}
    assert images == {
        f"{name}.png"
        for name in (
            *("success", "opsd-loss", "trust", "held-out", "gain", "phases"),
            *("teacher-by-success", "teacher-over-training", "funnel", "skill-categories", "category-gain"),
            *("gain-by-type", "type-means", "trust-by-type"),
        )
    }
    assert len(page.all("svg")) == len(images)


def test_several_runs_share_figures_and_keep_their_own(several: dict[str, bytes]) -> None:
    text = several[PAGE].decode()
    page = Page(text)
    assert {"ablation.png", "run-1-funnel.png", "run-2-funnel.png"} <= several.keys()
    assert "run-3-funnel.png" not in several
    assert json.loads(page.texts["index"])["runs"][1:] == ["no-trust", "grpo"]
    assert len([button for button in page.all("button") if button.get("role") == "tab"]) == 3
    assert "This run has no execution check (method grpo)" in text
    assert text.count("recorded before audits kept the evidence trajectories") == 1
    assert "Update skipped (non-finite gradient) in steps 2, 3." in text
