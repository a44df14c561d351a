"""The sentence encoder of the similarity check, found by folder or by its name on the hub."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from agent_system.retrieval.encoders import SentenceEncoder, describe_encoder
from agent_system.retrieval.types import IndexProblem
from rsipo.problems import UserError


class SentenceQuestionEncoder:
    """A sentence-transformers model that embeds questions as queries.

    Args:
        name: a folder; or a hub name such as ``intfloat/e5-base-v2``, looked for under ``MODELS_ROOT`` and in the local
            cache of the hub. Nothing is downloaded.

    Raises:
        UserError: it is not there or cannot be loaded.
    """

    def __init__(self, name: str) -> None:
        with suppress(ImportError):  # the encoder says so, if it is missing
            from transformers.utils import logging

            logging.disable_progress_bar()
        folder = find_model(name)
        # A snapshot in the hub's cache is not named like its model.
        prefix = "query: " if "e5" in name.lower() else None
        try:
            facts = describe_encoder(folder, query_prefix=prefix)
            self._model = SentenceEncoder(facts)
        except IndexProblem as error:
            raise UserError(f"--encoder: {error}") from error
        self.name = name
        self.identity = f"{facts.identity} prefix={facts.query_prefix!r} tokens={facts.query_tokens} float32"

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        """Unit vectors, float32, shape (questions, dimension)."""
        return self._model.encode_queries(questions)


def find_model(name: str) -> Path:
    """The folder of a model.

    Raises:
        UserError: none of the places has it.
    """
    places = [Path(name).expanduser()]
    if root := os.environ.get("MODELS_ROOT", "").strip():
        places.append(Path(root).expanduser() / Path(name).name)
    for place in places:
        if place.is_dir():
            return place
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, local_files_only=True))
    except (ImportError, OSError, ValueError):
        raise UserError(
            f"--encoder {name}: no such model in {', '.join(map(str, places))} or the local hub cache; "
            f"get it (hf download {name}), name a sentence-transformers folder, or choose --encoder none"
        )
