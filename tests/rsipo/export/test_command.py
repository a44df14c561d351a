"""``rsipo export`` from a run to a folder that others can use, and everything it refuses."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rsipo.configuration import compose_run
from rsipo.export.command import export_command
from rsipo.models import EMBEDDED_POLICY, read_model
from rsipo.preflight import inspect
from rsipo.problems import UserError
from rsipo.run_settings import RunSettings
from verl_ext.checkpoint import MARKER
from verl_ext.export import ShardedPolicy

DEFAULTS: dict[str, Any] = {"out": None, "precision": "bf16", "overwrite": False, "private": True}


def export(run: Path | str, step: str | None = None, repository: str | None = None, **options: Any) -> Path:
    return export_command(str(run), step, repository, **(DEFAULTS | options))


def checkpoint(run: Path, step: int) -> Path:
    return run / "rsipo" / "checkpoints" / f"global_step_{step}"


def test_the_newest_checkpoint_becomes_a_model_that_can_be_used(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = export(run)
    assert folder == run / "export" / "rsipo-tiny-policy-alfworld-step12"
    assert f"Model: {folder}" in capsys.readouterr().out
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]  # nothing else is left
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "MANIFEST.sha256"], cwd=folder, check=True)
    listed = {line.split("  ")[1] for line in (folder / "MANIFEST.sha256").read_text().splitlines()}
    assert listed == {path.name for path in folder.iterdir()} - {"MANIFEST.sha256"}
    assert {oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {"0o644"}

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    expected = dict(ShardedPolicy(checkpoint(run, 12) / "actor").tensors(torch.bfloat16))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
    text = "You arrive at desk 1. On the desk 1, you see a mug 2."
    ours, theirs = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(EMBEDDED_POLICY)
    assert ours.encode(text) == theirs.encode(text)

    assert read_model(folder).layers == 3
    config = compose_run(["recipe=embedded", f"policy.path={folder}", "run.name=again", f"run.work_dir={tmp_path}"])
    problems = inspect(config, RunSettings.from_config(config), str(folder), data_made_later=True)[1]
    assert not [problem for problem in problems if str(folder) in problem]


def test_an_older_step_in_full_precision_elsewhere(run: Path, tmp_path: Path) -> None:
    folder = export(run, "6", precision="fp32", out=tmp_path / "deep" / "mine")
    assert folder == tmp_path / "deep" / "mine"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    expected = dict(ShardedPolicy(checkpoint(run, 6) / "actor").tensors(torch.float32))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_the_base_model_may_be_gone(run: Path, change_config: Callable[[str, Any], None]) -> None:
    change_config("policy.path", "/nowhere/Qwen3-1.7B-alfworld-sft")
    card = (export(run) / "README.md").read_text()
    assert "base_model: Qwen/Qwen3-1.7B" in card


def test_what_exists_is_kept_unless_it_is_an_export_to_be_replaced(run: Path, tmp_path: Path) -> None:
    folder = export(run, "6")
    with pytest.raises(UserError, match="exists: --overwrite replaces it, --out DIR writes elsewhere"):
        export(run, "6")
    before = (folder / "MANIFEST.sha256").read_text()
    assert export(run, "12", out=folder, overwrite=True) == folder
    assert (folder / "MANIFEST.sha256").read_text() != before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    mine = tmp_path / "home"
    mine.mkdir()
    (mine / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"is no exported model .* and is not replaced"):
        export(run, out=mine, overwrite=True)
    assert (mine / "thesis.tex").exists()


def test_a_tokenizer_that_is_not_the_training_ones_is_found(
    run: Path, tmp_path: Path, change_config: Callable[[str, Any], None]
) -> None:
    """And a failed verification leaves nothing behind, nor does it touch an earlier export."""
    base = Path(shutil.copytree(EMBEDDED_POLICY, tmp_path / "base"))
    change_config("policy.path", str(base))
    template = base / "chat_template.jinja"
    template.write_text(template.read_text() + "!")
    with pytest.raises(UserError, match="the exported chat template differs from that of"):
        export(run)
    assert not list((run / "export").iterdir())
    shutil.copyfile(EMBEDDED_POLICY / "chat_template.jinja", template)
    tokenizer = base / "tokenizer.json"
    assert " desk 1" in tokenizer.read_text()
    tokenizer.write_text(tokenizer.read_text().replace('" desk 1"', '" desk one"'))
    with pytest.raises(UserError, match=r"the exported tokenizer differs from that of .* as on 'You arrive at desk 1"):
        export(run)


@pytest.mark.parametrize("damage", ["marker", "file", "short", "killed"])
def test_an_incomplete_checkpoint_is_refused(run: Path, damage: str) -> None:
    folder = checkpoint(run, 12)
    weights = folder / "actor" / "model_world_size_1_rank_0.pt"
    if damage == "marker":
        (folder / MARKER).unlink()
    elif damage == "file":
        weights.unlink()
    elif damage == "short":
        weights.write_bytes(weights.read_bytes()[:-1])
    else:
        folder.rename(folder.with_suffix(".partial"))
    what = "has no checkpoint of step 12" if damage == "killed" else "global_step_12 is incomplete"
    with pytest.raises(UserError, match=f"{what}; complete are: 6"):
        export(run, "12")
    assert not (run / "export").exists()
    shutil.rmtree(checkpoint(run, 6))
    with pytest.raises(UserError, match="holds no complete checkpoint"):
        export(run)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["7"], {}, "has no checkpoint of step 7; complete are: 6, 12"),
        (["me/model"], {}, "STEP must be a number or 'latest', not 'me/model'"),
        (["12", "model"], {}, "HF_REPO 'model' names no owner; write OWNER/model"),
        (["12", "me/mo del"], {}, "HF_REPO 'me/mo del' is no repository"),
        ([], {"precision": "fp16"}, "--dtype fp16: did you mean 'bf16'?"),
    ],
)
def test_wrong_words_are_refused_before_any_work(
    trained_run: Path, arguments: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as error:
        export(trained_run, *arguments, **options)
    assert message in str(error.value)
    assert not (trained_run / "export").exists()


def test_a_run_is_found_by_name_and_a_wrong_name_names_the_nearest(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "work" / "runs"
    runs.mkdir(parents=True)
    (runs / run.name).symlink_to(run)
    monkeypatch.setenv("RSIPO_WORK", str(tmp_path / "work"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match=r"no run 'rsipo-tiny-polcy-alfworld': .* did you mean 'rsipo-tiny-policy-alfworld'\?"
    ):
        export("rsipo-tiny-polcy-alfworld")
    with pytest.raises(UserError, match="has no checkpoint of step 1;"):
        export(run.name, "1")
    with pytest.raises(UserError, match="has no checkpoint of step 1;"):
        export(run / "rsipo", "1")
    (run / "rsipo" / "config.yaml").write_text("policy: 1")
    with pytest.raises(UserError, match="is no configuration of a run"):
        export(run)


def test_a_full_disk_ends_with_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ShardedPolicy, "write", full)  # stands in for a disk that fills up
    with pytest.raises(UserError, match=r"was not written .No space left on device.; free space, or use --out DIR"):
        export(run)
    assert not list((run / "export").iterdir())
