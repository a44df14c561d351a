"""The model card says what the run says, and nothing it does not know."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from rsipo.export.card import curve, describe_base, read_evaluations, render_card
from rsipo.export.source import find_source
from rsipo.models import EMBEDDED_POLICY

CELL = {"tasks": 140, "turns": 11.25, "success": {"mean": 0.986, "std": 0.004, "interval": [0.97, 0.995]}}
SUMMARY = {
    "protocol": {"temperature": 0.4, "seeds": [1, 2, 3], "nested": {}},
    "splits": {"valid_seen": CELL | {"types": {"pick_two_obj_and_place": CELL | {"turns": None}}}},
}


def render(run: Path, **changes: object) -> str:
    return render_card(find_source(str(run), None), name="mine", dtype="bf16", world_size=2)


def test_a_card_without_an_evaluation(run: Path, change_config) -> None:
    change_config("policy.path", "/nowhere/my-model")
    card = render(run)
    metadata = yaml.safe_load(card.split("---\n")[1])
    assert metadata["library_name"] == "transformers"
    assert "license" not in metadata  # not known
    assert "base_model" not in metadata
    assert "after 12 of 12 training steps on alfworld" in card
    assert "bfloat16, merged from the checkpoint of 2 ranks" in card
    assert "This checkpoint was not evaluated after training." in card
    assert "| 0 | 25.0% | 120 |" in card
    assert "| `method.name` | rsipo |" in card
    assert "| 12 | 12.0% | +0.100 | 1.100 |" in card
    assert "| 13 |" not in card  # a later step than the checkpoint's
    assert "{{" not in card


def test_the_shipped_policys_licence_is_its_cards(run: Path) -> None:
    assert yaml.safe_load(render(run).split("---\n")[1])["license"] == "mit"


def test_the_code_of_the_card_is_python(run: Path, change_config) -> None:
    change_config("policy.chat_template_kwargs", {"enable_thinking": False})
    code = re.search(r"```python\n(.*?)```", render(run), re.DOTALL)
    assert code
    compile(code.group(1), "card", "exec")
    assert "return_dict=True, enable_thinking=False)" in code.group(1)


def test_a_card_with_evaluations(run: Path) -> None:
    for name, content in {
        "eval-step12-max50": json.dumps(SUMMARY),
        "eval-step12-broken": "{",
        "eval-step12-odd": json.dumps({"splits": {"valid_seen": {"success": 1}}}),
        "eval-step120-max50": json.dumps(SUMMARY),
    }.items():
        (run / name).mkdir()
        (run / name / "summary.json").write_text(content)
    assert [evaluation["name"] for evaluation in read_evaluations(run, 12)] == ["eval-step12-max50"]
    card = render(run)
    assert "`eval-step12-max50`: temperature 0.4, seeds [1, 2, 3]" in card
    assert "| **valid_seen** | 140 | 98.6% | 0.4% | 97.0% – 99.5% | 11.2 |" in card
    assert "| pick_two_obj_and_place | 140 | 98.6% | 0.4% | 97.0% – 99.5% | – |" in card


def test_a_card_says_when_an_evaluation_was_of_a_subset(run: Path) -> None:
    subset = "2 tasks of each split"
    for name, declared in {"eval-step12-max50": None, "eval-step12-max50-tasks2": subset}.items():
        (run / name).mkdir()
        (run / name / "summary.json").write_text(json.dumps({"subset": declared, **SUMMARY}))
    whole, part = render(run).split("`eval-step12-max50-tasks2`")
    assert "subset" not in whole
    assert f"seeds [1, 2, 3]\n\n**A subset of the panel: {subset}.**" in part
    assert part.index(subset) < part.index("| **valid_seen**")


def test_the_curve_is_cut_into_blocks_of_steps() -> None:
    rows = [{"step": step, "student/success": 0.5, "check/trust": float("nan")} for step in range(151)]
    table = curve(rows)
    assert [line["steps"] for line in table[:2]] == ["1–10", "11–20"]
    assert len(table) == 15
    assert table[0].keys() == {"steps", "student success"}
    assert curve([{"step": 0}]) == []


@pytest.mark.parametrize(
    ("name", "card", "repository", "licence"),
    [
        ("Qwen2.5-7B-Instruct-alfworld-sft", None, "Qwen/Qwen2.5-7B-Instruct", "apache-2.0"),
        ("Qwen2.5-3B-Instruct", None, "Qwen/Qwen2.5-3B-Instruct", "other"),
        ("my-model", None, None, None),
        ("my-model", "---\nlicense: mit\n---\n# Mine", None, "mit"),
        ("my-model", "---\nlicense: [\n---\n", None, None),
        ("my-model", "# No metadata", None, None),
    ],
)
def test_the_base_model(
    tmp_path: Path, name: str, card: str | None, repository: str | None, licence: str | None
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    if card is not None:
        (folder / "README.md").write_text(card)
    base = describe_base(folder)
    assert (base.name, base.repository, base.licence.get("license")) == (name, repository, licence)


def test_a_licence_of_its_own_name_is_linked(run: Path, change_config) -> None:
    change_config("policy.path", "/nowhere/Qwen2.5-3B-Instruct")
    card = render(run)
    assert yaml.safe_load(card.split("---\n")[1])["license_name"] == "qwen-research"
    assert "- **Licence:** qwen-research, that of the base model (https://huggingface.co/Qwen/" in card


def test_an_old_runs_configuration_is_enough(run: Path) -> None:
    (run / "rsipo" / "config.yaml").write_text(f"policy: {{path: {EMBEDDED_POLICY}}}\n")
    (run / "rsipo" / "metrics.jsonl").unlink()
    card = render(run)
    assert "The run's metrics are not available." in card
    assert "after 12 training steps" in card
