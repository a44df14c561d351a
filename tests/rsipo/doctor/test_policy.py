"""A model folder that is whole by its files and cannot be used all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rsipo.doctor.findings import Finding
from rsipo.doctor.policy import check_policy


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def look(model: Path) -> dict[str, Finding]:
    return {finding.what: finding for finding in check_policy(model, str(model), {})}


def test_a_whole_folder(model: Path) -> None:
    found = look(model)
    assert {finding.level for finding in found.values()} == {"ok"}
    assert "960 tokens, chat template renders" in found["tokenizer"].found


def test_sizes_of_another_model(model: Path) -> None:
    change(model / "config.json", vocab_size=1024)
    finding = look(model)["folder"]
    assert finding.level == "fail"
    assert "model.embed_tokens.weight has shape [960, 128], config.json says [1024, 128]" in finding.found
    assert finding.remedy == "they are of different models: download the folder again"


def test_a_tokenizer_of_another_model(model: Path) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | {"id": 960, "content": "<|one-too-many|>"})
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    finding = look(model)["tokenizer"]
    assert (finding.level, finding.found) == ("fail", "961 tokens for 960 embeddings")


def test_a_template_that_does_not_render(model: Path) -> None:
    (model / "chat_template.jinja").write_text("{{ raise_exception('no such role') }}")
    finding = look(model)["tokenizer"]
    assert (finding.level, finding.found) == ("fail", "cannot be used: no such role")
