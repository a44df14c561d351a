"""What can be learned of a model folder without loading it: family, size, context length, and whether it can be used."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_system.files import files_sha256
from rsipo.configuration import nearest
from rsipo.problems import UserError
from rsipo.weight_shapes import read_header, shape_problem

#: The published configurations, and what a model folder's name must contain to take one (``config/family``).
FAMILIES = {"qwen2.5-7b": "qwen2.5-7b", "qwen2.5-3b": "qwen2.5-3b", "qwen3-1.7b": "qwen3-1.7b"}
EMBEDDED_POLICY = Path(__file__).parent / "assets" / "tiny-policy"
EMBEDDED_SEARCH_POLICY = Path(__file__).parent / "assets" / "tiny-search-policy"


def models_root() -> Path:
    """Where model folders lie: ``MODELS_ROOT``, else ``$RSIPO_WORK/models``."""
    default = Path(os.environ.get("RSIPO_WORK", "outputs")) / "models"
    return Path(os.environ.get("MODELS_ROOT", default)).expanduser()


def model_folder(name: str) -> Path:
    """The folder of a model given by name (under ``MODELS_ROOT``) or by path.

    Raises:
        UserError: no such folder, with the nearest name that exists.
    """
    for path in (Path(name).expanduser(), models_root() / name):
        if (path / "config.json").is_file():
            return path.resolve()
    root = models_root()
    known = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    raise UserError(f"no model folder '{name}' under MODELS_ROOT={root}: {nearest(name, known)}")


def family(name: str) -> str:
    """The configuration family of a model, by its name; ``default`` for any other."""
    lowered = name.lower()
    return next((family for marker, family in FAMILIES.items() if marker in lowered), "default")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Sizes read from ``config.json``. ``parameters`` counts weights; ``kv_bytes_per_token`` is for two-byte elements."""

    architecture: str
    parameters: int
    layers: int
    vocabulary: int
    hidden: int
    intermediate: int
    context_length: int
    kv_bytes_per_token: int


def read_model(path: Path) -> ModelFacts:
    """Read and check a model folder: configuration, weights, tokenizer, chat template.

    Raises:
        UserError: what is missing or broken, and the remedy.
    """
    values = _read_json(path / "config.json")
    if (index := path / "model.safetensors.index.json").is_file():
        for name in sorted(set(_read_json(index).get("weight_map", {}).values())):
            if not (path / name).is_file():
                raise UserError(f"model {path}: {name} is missing, {index.name} lists it; download it again")
    shapes = {name: shape for file in path.glob("*.safetensors") for name, shape in _read_shapes(file).items()}
    if not list(path.glob("*.safetensors")) and not list(path.glob("pytorch_model*.bin")):
        raise UserError(f"model {path}: no weights (*.safetensors); download it again")
    if not (path / "tokenizer.json").is_file() and not (path / "vocab.json").is_file():
        raise UserError(
            f"model {path}: no tokenizer (tokenizer.json); download the whole repository, not the weights alone"
        )
    if (path / "tokenizer.json").is_file():
        _read_json(path / "tokenizer.json")
    template = path / "chat_template.jinja"
    if not template.is_file() and not _read_json(path / "tokenizer_config.json").get("chat_template"):
        raise UserError(
            f"model {path}: no chat template; RSIPO needs an instruction-tuned model or a chat_template.jinja in the folder"
        )
    try:
        facts = _facts(values)
        problem = shape_problem(values, shapes)
    except KeyError as error:
        raise UserError(
            f"model {path}: config.json lacks {error}; only decoder-only language models are supported"
        ) from error
    except (TypeError, ZeroDivisionError) as error:
        raise UserError(f"model {path}: the sizes in config.json make no sense ({error}); download it again") from error
    if problem:
        raise UserError(f"model {path}: {problem}; they are of different models: download the folder again")
    return facts


def policy_files(path: Path, *, weights: bool = True) -> tuple[Path, ...]:
    """Every file of a model folder that decides what the policy answers; without ``weights`` all but those."""
    patterns = ["config.json", "generation_config.json", "tokenizer*", "vocab.json", "merges.txt", "*.jinja"]
    patterns += ["*.safetensors", "pytorch_model*.bin"] if weights else []
    return tuple(sorted({file for pattern in patterns for file in path.glob(pattern)}))


def policy_sha256(paths: Sequence[Path], progress: Callable[[int, int], None] = lambda done, total: None) -> str:
    """A hash of a policy's files: sha256 over (name, sha256) of each, sorted. ``progress`` gets bytes (read, in all)."""
    lines = [f"{path.name}\t{sha256}" for path, sha256 in zip(paths, files_sha256(paths, progress), strict=True)]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _read_shapes(path: Path) -> dict[str, list[int]]:
    """Shapes of the weights in a safetensors file, which must be whole."""
    try:
        return {name: tensor["shape"] for name, tensor in read_header(path).items()}
    except (ValueError, KeyError) as error:
        raise UserError(
            f"model {path.parent}: {path.name} is cut off or no safetensors file; download it again"
        ) from error


def _facts(values: dict[str, Any]) -> ModelFacts:
    hidden, layers, vocabulary = values["hidden_size"], values["num_hidden_layers"], values["vocab_size"]
    heads = values["num_attention_heads"]
    kv_heads = values.get("num_key_value_heads") or heads
    head_size = values.get("head_dim") or hidden // heads
    attention = hidden * head_size * (2 * heads + 2 * kv_heads)
    feed_forward = 3 * hidden * values["intermediate_size"]
    embeddings = vocabulary * hidden * (1 if values.get("tie_word_embeddings") else 2)
    return ModelFacts(
        architecture=(values.get("architectures") or ["unknown"])[0],
        parameters=layers * (attention + feed_forward + 2 * hidden) + embeddings + hidden,
        layers=layers,
        vocabulary=vocabulary,
        hidden=hidden,
        intermediate=values["intermediate_size"],
        context_length=values["max_position_embeddings"],
        kv_bytes_per_token=2 * layers * kv_heads * head_size * 2,
    )


def _published(
    layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, vocabulary: int, context: int, tied: bool
) -> ModelFacts:
    return _facts(
        {
            "architectures": ["published"], "vocab_size": vocabulary, "hidden_size": hidden, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 128,
            "intermediate_size": intermediate, "tie_word_embeddings": tied, "max_position_embeddings": context,
        }
    )  # fmt: skip


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"model {path.parent}: {path.name} is missing; download the whole repository") from None
    except (OSError, ValueError) as error:
        what = (
            f"is not JSON (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else f"unreadable: {error}"
        )
        raise UserError(f"model {path.parent}: {path.name} {what}; download it again") from None
    if not isinstance(values, dict):
        raise UserError(f"model {path.parent}: {path.name} is not a JSON object; download it again")
    return values


#: Sizes of the published base models, so that a dry run can plan before the weights are downloaded.
PUBLISHED = {
    "qwen2.5-7b": _published(28, 3584, 28, 4, 18944, 152064, 32768, tied=False),
    "qwen2.5-3b": _published(36, 2048, 16, 2, 11008, 151936, 32768, tied=True),
    "qwen3-1.7b": _published(28, 2048, 16, 8, 6144, 151936, 40960, tied=True),
}
