"""Whether the weights of a model folder have the sizes that its ``config.json`` says. Reads headers only."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_EMBEDDINGS = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


def read_header(path: Path) -> dict[str, Any]:
    """The tensors of a safetensors file by name, each with ``dtype``, ``shape`` and ``data_offsets``.

    Raises:
        ValueError: the file is cut off or no safetensors file.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            size = path.stat().st_size
            header = json.loads(file.read(length)) if 8 < 8 + length <= size else {}
        tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
        end = 8 + length + max(tensor["data_offsets"][1] for tensor in tensors.values())
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError("no safetensors header") from error
    if end != size:
        raise ValueError(f"{size} bytes where the header needs {end}")
    return tensors


def shape_problem(config: Mapping[str, Any], shapes: Mapping[str, list[int]]) -> str | None:
    """The first difference between a decoder's configuration and its weights' shapes; None where there is none.

    Weights under other names than the Llama and Qwen families use are not judged, nor are quantized ones.

    Args:
        config: ``config.json``.
        shapes: of all weights, by name.
    """
    if _EMBEDDINGS not in shapes or "quantization_config" in config:
        return None
    layers = {int(found.group(1)) for name in shapes if (found := _LAYER.match(name))}
    expected_layers = config["num_hidden_layers"]
    if layers != set(range(expected_layers)):
        return f"config.json has {expected_layers} layers (num_hidden_layers), the weights have {len(layers)}"
    if config.get("tie_word_embeddings") is False and _HEAD not in shapes:
        return f"config.json has tie_word_embeddings=false, but there is no {_HEAD}"
    expected = _expected_shapes(config)
    for name in sorted(shapes):
        wanted = expected.get(_LAYER.sub("", name))
        if wanted is not None and list(shapes[name]) != wanted:
            return f"{name} has shape {list(shapes[name])}, config.json says {wanted}"
    return None


def _expected_shapes(config: Mapping[str, Any]) -> dict[str, list[int]]:
    """By name, for a layer without its ``model.layers.N.``."""
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or hidden // heads
    queries, keys = heads * head_size, (config.get("num_key_value_heads") or heads) * head_size
    return {
        _EMBEDDINGS: [vocabulary, hidden],
        _HEAD: [vocabulary, hidden],
        "model.norm.weight": [hidden],
        "input_layernorm.weight": [hidden],
        "post_attention_layernorm.weight": [hidden],
        "self_attn.q_proj.weight": [queries, hidden],
        "self_attn.k_proj.weight": [keys, hidden],
        "self_attn.v_proj.weight": [keys, hidden],
        "self_attn.o_proj.weight": [hidden, queries],
        "mlp.gate_proj.weight": [inner, hidden],
        "mlp.up_proj.weight": [inner, hidden],
        "mlp.down_proj.weight": [hidden, inner],
    }
