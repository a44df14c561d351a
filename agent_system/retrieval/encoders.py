"""From texts to vectors of length one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from agent_system.retrieval.file_facts import probe
from agent_system.retrieval.manifest import EncoderFacts
from agent_system.retrieval.types import IndexProblem

Precision = Literal["float32", "bfloat16"]

#: How the published wiki-18 index was made, and how the public servers ask it.
QUERY_TOKENS, PASSAGE_TOKENS = 256, 180
_BATCH = 64
_SMALL_FILES = ("*.json", "*.txt", "*.model", "*/config.json")


class Encoder(Protocol):
    """Texts to float32 of shape (texts, dimension), rows of Euclidean length 1."""

    dimension: int

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray: ...

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray: ...


class SentenceEncoder:
    """A sentence-transformers folder (e5, MiniLM, BGE, …) on the CPU; plain Hugging Face models get mean pooling.

    Args:
        facts: prefixes and token limits.
        path: the model folder; None: where ``facts`` says.
        precision: ``bfloat16`` computes matrix products in it: faster on CPUs with AMX or AVX-512 BF16, far slower
            on others.
    """

    def __init__(self, facts: EncoderFacts, *, path: Path | None = None, precision: Precision = "float32") -> None:
        self._model = _load(path or Path(facts.path))
        self._facts = facts
        self._precision = precision
        self.dimension = facts.dimension

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return self._encode(texts, self._facts.query_prefix, self._facts.query_tokens)

    def encode_passages(self, texts: Sequence[str]) -> np.ndarray:
        return self._encode(texts, self._facts.passage_prefix, self._facts.passage_tokens)

    def _encode(self, texts: Sequence[str], prefix: str, tokens: int) -> np.ndarray:
        import torch

        self._model.max_seq_length = tokens
        lower = torch.autocast("cpu", dtype=torch.bfloat16) if self._precision == "bfloat16" else nullcontext()
        with torch.inference_mode(), lower:
            vectors = self._model.encode(
                [prefix + text for text in texts],
                prompt="",  # the prefix is here already
                batch_size=_BATCH,
                normalize_embeddings=True,
                show_progress_bar=False,
            )
        return np.ascontiguousarray(vectors, np.float32)


def describe_encoder(path: Path, *, query_prefix: str | None = None, passage_prefix: str | None = None) -> EncoderFacts:
    """What an index has to remember of the encoder in a folder. Loads it once.

    Prefixes that are not given are those of the folder's ``config_sentence_transformers.json``, else ``query: `` and
    ``passage: `` for a model with "e5" in its name, else none.

    Raises:
        IndexProblem: not a model folder.
    """
    model = _load(path)
    limit = model.max_seq_length or QUERY_TOKENS
    prompts = _prompts(path)
    return EncoderFacts(
        path=str(path.resolve()),
        identity=encoder_identity(path),
        dimension=model.get_embedding_dimension(),
        query_prefix=prompts["query"] if query_prefix is None else query_prefix,
        passage_prefix=prompts["passage"] if passage_prefix is None else passage_prefix,
        query_tokens=min(QUERY_TOKENS, limit),
        passage_tokens=min(PASSAGE_TOKENS, limit),
    )


def encoder_identity(path: Path) -> str:
    """Hex sha256 of the folder's weights (probed), tokenizer and configuration, by relative name."""
    weights = sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))
    small = [file for pattern in _SMALL_FILES for file in path.glob(pattern)]
    digest = hashlib.sha256()
    for file in sorted({*weights, *small}):
        digest.update(f"{file.relative_to(path)} {probe(file)}\n".encode())
    return digest.hexdigest()


def _load(path: Path):
    if not (path / "config.json").is_file():
        raise IndexProblem(
            f"{path} is no folder of an encoder (no config.json); download one, e.g. "
            "hf download intfloat/e5-base-v2 --local-dir FOLDER"
        )
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise IndexProblem(f'an encoder needs sentence-transformers ({error}); pip install "rsipo[search]"') from error
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # loading takes a second, and has nothing to do in a server's log
    try:
        return SentenceTransformer(str(path), device="cpu", local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise IndexProblem(f"the encoder in {path} cannot be loaded: {error}") from error


def _prompts(path: Path) -> dict[str, str]:
    folder = path.absolute()
    # A snapshot in the hub's cache is named by its commit; its model's name stands two folders up.
    name = (folder.parents[1] if folder.parent.name == "snapshots" else folder).name.lower()
    prompts = {"query": "query: ", "passage": "passage: "} if "e5" in name else {"query": "", "passage": ""}
    settings = path / "config_sentence_transformers.json"
    if settings.is_file():
        own = json.loads(settings.read_text(encoding="utf-8")).get("prompts") or {}
        prompts["query"] = own.get("query") or prompts["query"]
        prompts["passage"] = own.get("passage") or own.get("document") or prompts["passage"]
    return prompts
