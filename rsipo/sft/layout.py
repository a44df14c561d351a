"""The files of one SFT data folder: the published ones on top, what a stage needs to go on in ``work/``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: Every published file but the hashes, in the order in which they are made.
PUBLISHED = (
    "sampled_tasks.jsonl.gz",
    "trajectories.jsonl.gz",
    "annotations.jsonl.gz",
    "sft_records.jsonl.gz",
    "train.parquet",
    "val.parquet",
    "metrics.json",
    "metadata.json",
)
HASHES = "SOURCE_SHA256.json"
#: Longest sample (prompt and response, in tokens) that the published fine-tuning takes on each benchmark.
MAX_LENGTH = {"alfworld": 8192, "search": 12288}


@dataclass(frozen=True, slots=True)
class SftFiles:
    """The folder ``root``, which is ``DATA_DIR`` of the training script."""

    root: Path

    @property
    def tasks(self) -> Path:
        return self.root / "sampled_tasks.jsonl.gz"

    @property
    def trajectories(self) -> Path:
        return self.root / "trajectories.jsonl.gz"

    @property
    def annotations(self) -> Path:
        return self.root / "annotations.jsonl.gz"

    @property
    def records(self) -> Path:
        return self.root / "sft_records.jsonl.gz"

    @property
    def train(self) -> Path:
        return self.root / "train.parquet"

    @property
    def validation(self) -> Path:
        return self.root / "val.parquet"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.json"

    @property
    def metadata(self) -> Path:
        return self.root / "metadata.json"

    @property
    def hashes(self) -> Path:
        return self.root / HASHES

    @property
    def sampling(self) -> Path:
        """How the tasks were sampled."""
        return self.root / "work" / "sampling.json"

    @property
    def rollouts(self) -> Path:
        """The folder in which the episodes are played, laid out as an evaluation's."""
        return self.root / "work" / "rollouts"

    @property
    def annotating(self) -> Path:
        """Who annotated, and how."""
        return self.root / "work" / "annotating.json"

    @property
    def responses(self) -> Path:
        """The external LLM's responses, one file each."""
        return self.root / "work" / "responses"
