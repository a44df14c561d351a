"""A configuration of another model than the weights is found by their headers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rsipo.models import EMBEDDED_POLICY, read_model
from rsipo.problems import UserError
from rsipo.weight_shapes import read_header, shape_problem

CONFIG: dict[str, Any] = json.loads((EMBEDDED_POLICY / "config.json").read_text())
SHAPES = {name: tensor["shape"] for name, tensor in read_header(EMBEDDED_POLICY / "model.safetensors").items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"num_hidden_layers": 4}, "config.json has 4 layers (num_hidden_layers), the weights have 3"),
        ({"vocab_size": 1024}, "model.embed_tokens.weight has shape [960, 128], config.json says [1024, 128]"),
        (
            {"intermediate_size": 512},
            "model.layers.0.mlp.down_proj.weight has shape [128, 384], config.json says [128, 512]",
        ),
        (
            {"num_key_value_heads": 2},
            "model.layers.0.self_attn.k_proj.weight has shape [128, 128], config.json says [64, 128]",
        ),
        ({"head_dim": 64}, "model.layers.0.self_attn.k_proj.weight has shape [128, 128], config.json says [256, 128]"),
        ({"tie_word_embeddings": False}, "config.json has tie_word_embeddings=false, but there is no lm_head.weight"),
        ({"hidden_size": 64, "quantization_config": {}}, None),
    ],
)
def test_sizes_that_differ(change: dict[str, Any], message: str | None) -> None:
    assert shape_problem(CONFIG | change, SHAPES) == message


def test_other_families_are_not_judged() -> None:
    assert shape_problem(CONFIG, {"transformer.wte.weight": [1, 1]}) is None


def test_such_a_folder_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(EMBEDDED_POLICY, tmp_path / "model"))
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 6}))
    with pytest.raises(
        UserError, match=r"config\.json has 6 layers .*they are of different models: download the folder again"
    ):
        read_model(folder)


@pytest.mark.parametrize("content", [b"", b"\x01", b"[]", (2).to_bytes(8, "little") + b"[]", (9).to_bytes(8, "little")])
def test_what_is_no_safetensors_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="no safetensors header"):
        read_header(path)
