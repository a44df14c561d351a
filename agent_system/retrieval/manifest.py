"""What an index folder says of itself, so that a server can refuse to mix parts that do not belong together."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from agent_system.files import write_atomically
from agent_system.retrieval.file_facts import FileFacts
from agent_system.retrieval.types import IndexProblem

MANIFEST = "manifest.json"
IndexKind = Literal["bm25", "matrix", "flat", "sq8", "ivf-sq8"]


class EncoderFacts(BaseModel):
    """An encoder and how texts are put to it.

    Attributes:
        path: model folder at the time of building.
        identity: hash of weights, tokenizer and configuration; the folder may move.
        dimension: of its vectors.
        query_prefix, passage_prefix: put before every text.
        query_tokens, passage_tokens: longer texts are cut there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    identity: str
    dimension: int
    query_prefix: str
    passage_prefix: str
    query_tokens: int
    passage_tokens: int


class Manifest(BaseModel):
    """``manifest.json`` of an index folder.

    Attributes:
        kind: of index.
        rows: of the corpus, and of the index.
        corpus: the uncompressed JSONL.
        source: the corpus the folder was built from, packed or not.
        offsets: of the corpus' rows.
        index: the files of the index.
        encoder: None for BM25.
        nprobe: inverted lists visited per query (``ivf-sq8``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    kind: IndexKind
    rows: int
    source: FileFacts
    corpus: FileFacts
    offsets: FileFacts
    index: list[FileFacts]
    encoder: EncoderFacts | None = None
    nprobe: int | None = None

    @property
    def fingerprint(self) -> str:
        """Hex sha256 over everything that decides the answers; independent of where the files lie."""
        encoder = self.encoder.model_dump(exclude={"path"}) if self.encoder else None
        parts = [self.kind, self.rows, self.nprobe, self.corpus.sha256, [facts.sha256 for facts in self.index], encoder]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Written last: a folder without it is not an index."""
        write_atomically(folder / MANIFEST, self.model_dump_json(indent=1))

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Raises IndexProblem without a readable manifest."""
        path = folder / MANIFEST
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise IndexProblem(
                f"{folder} is no finished index (no {MANIFEST}); make one: rsipo retriever build"
            ) from None
        except (OSError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise IndexProblem(f"{path} cannot be read ({reason}); build the index again") from error
