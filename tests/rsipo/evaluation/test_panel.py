"""Panels: explicit, hashed, each task once; what does not match is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agent_system.environments.alfworld.spec import AlfworldSpec
from rsipo.configuration import compose_run
from rsipo.evaluation.panel import make_panel, restrict_to_file
from rsipo.problems import UserError
from rsipo.run_settings import PanelSection


def asked(**changes: object) -> PanelSection:
    values = {"splits": {"valid_seen": 6, "valid_unseen": 6}, "seeds": [1, 2, 3], "temperature": 0.4, "max_turns": 8}
    return PanelSection(**values | {"sha256": None, "folder": "eval"} | changes)


class Shuffled:
    """A benchmark whose file system lists games in another order."""

    def __init__(self, spec: AlfworldSpec) -> None:
        self.name, self._spec = spec.name, spec

    def tasks(self, split: str) -> list:
        return self._spec.tasks(split)[::-1]


def test_the_published_protocol_is_the_default() -> None:
    panel = PanelSection(**compose_run(["policy.path=x", "run.name=x"]).panel)
    assert panel.splits == {"valid_seen": 140, "valid_unseen": 134}
    assert (panel.seeds, panel.temperature, panel.max_turns) == ([1, 2, 3], 0.4, 50)


def test_every_task_stands_in_it_once_whatever_the_order_of_files(spec: AlfworldSpec) -> None:
    panel = make_panel(spec, asked())
    assert {split: len(tasks) for split, tasks in panel.splits.items()} == {"valid_seen": 6, "valid_unseen": 6}
    assert len({task.task_id for _, task in panel.tasks}) == 12
    other = make_panel(Shuffled(spec), asked())
    assert other.rows() == panel.rows()
    assert other.sha256 == panel.sha256


def test_the_hash_is_one_of_contents_not_of_places(spec: AlfworldSpec, tmp_path: Path) -> None:
    moved = shutil.copytree(spec.data_root, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("cache"))
    panel = make_panel(spec, asked())
    assert make_panel(replace(spec, data_root=str(moved), cache_dir=None), asked()).sha256 == panel.sha256
    game = Path(moved) / panel.splits["valid_seen"][0].task_id
    game.write_text(game.read_text().replace("walkthrough", "walkthru"))
    changed = make_panel(replace(spec, data_root=str(moved), cache_dir=None), asked())
    assert changed.sha256 != panel.sha256
    with pytest.raises(UserError, match=f"panel.sha256 asks for {panel.sha256}"):
        make_panel(replace(spec, data_root=str(moved), cache_dir=None), asked(sha256=panel.sha256))
    panel.write(tmp_path / "panel.json")
    with pytest.raises(UserError, match="has another content here"):
        restrict_to_file(changed, tmp_path / "panel.json")


def test_other_counts_are_refused_unless_a_subset_is_declared(spec: AlfworldSpec) -> None:
    published = asked(splits={"valid_seen": 140, "valid_unseen": 134})
    with pytest.raises(UserError, match=r"valid_seen has 6 tasks where the panel has 140: .* --subset"):
        make_panel(spec, published)
    everything = make_panel(spec, published, any_subset=True)
    assert len(everything.tasks) == 12
    assert everything.subset == "whatever tasks are there"
    some = make_panel(spec, published, count=4)
    assert len(some.tasks) == 8
    assert len({task.task_type for task in some.splits["valid_seen"]}) == 4
    assert some.subset == "4 of each split, spread over the task types"


def test_a_missing_split_is_refused_with_the_remedy(spec: AlfworldSpec) -> None:
    splits = {"valid_seen": 6, "valid_other": None}
    with pytest.raises(UserError, match=r"no split 'valid_other' of .*: download the games"):
        make_panel(spec, asked(splits=splits))
    assert list(make_panel(spec, asked(splits=splits), any_subset=True).splits) == ["valid_seen"]
    with pytest.raises(UserError, match="no split"):
        make_panel(spec, asked(splits={"valid_other": None}), any_subset=True)


def test_a_panel_file_gives_the_same_panel(spec: AlfworldSpec, tmp_path: Path) -> None:
    panel = make_panel(spec, asked())
    path = tmp_path / "panel.json"
    panel.write(path)
    again = restrict_to_file(panel, path)
    assert (again.sha256, again.subset) == (panel.sha256, None)
    make_panel(spec, asked(), count=2).write(path)
    some = restrict_to_file(panel, path)
    assert len(some.tasks) == 4
    assert some.subset == "the 4 tasks of a panel file"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["tasks"].pop(), "was changed or cut off"),
        (lambda content: content["tasks"][0].update(sha256="0"), "was changed or cut off"),
        (lambda content: content.pop("tasks"), "is no panel file"),
        (lambda content: content.update(benchmark="search"), "is one of 'search', not of 'alfworld'"),
    ],
)
def test_a_changed_panel_file_is_refused(change, message: str, spec: AlfworldSpec, tmp_path: Path) -> None:
    panel = make_panel(spec, asked())
    path = tmp_path / "panel.json"
    panel.write(path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        restrict_to_file(panel, path)


def test_a_panel_file_with_absent_tasks_is_refused(spec: AlfworldSpec, tmp_path: Path) -> None:
    make_panel(spec, asked()).write(tmp_path / "panel.json")
    with pytest.raises(UserError, match="is not among the data"):
        restrict_to_file(make_panel(spec, asked(splits={"valid_seen": 6})), tmp_path / "panel.json")
