"""Where training questions come from, each read row by row: Search-R1's file, FlashRAG's files, PopQA-like questions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rsipo.problems import UserError
from rsipo.searchdata.formats import BadRow, QARow, answers_of, metadata_of, question_of, read_processed
from rsipo.searchdata.popqa import TEMPLATES
from rsipo.searchdata.text import ask

#: Sources in the order in which they are read: of two rows with one question, the earlier source keeps it.
TRAIN_SOURCES = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique")
_FLASHRAG = ("triviaqa", "2wikimultihopqa", "musique")


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files of a training set.

    Attributes:
        search_r1: processed Search-R1 training parquet: NQ and HotpotQA.
        test: processed parquet of the test questions.
        flashrag: folder with ``<dataset>/train.jsonl``.
        trex_popqa: PopQA-like questions made from T-REx, None to do without.
    """

    search_r1: Path
    test: Path
    flashrag: Path
    trex_popqa: Path | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The sources these files give, in :data:`TRAIN_SOURCES` order."""
        return tuple(name for name in TRAIN_SOURCES if name != "popqa" or self.trex_popqa)

    def file_of(self, source: str) -> Path:
        """The file that holds a source."""
        if source == "popqa":
            assert self.trex_popqa is not None
            return self.trex_popqa
        return self.flashrag / source / "train.jsonl" if source in _FLASHRAG else self.search_r1

    @property
    def inputs(self) -> dict[str, Path]:
        """Every input under a short name, for the manifest."""
        found = {"search_r1_train": self.search_r1, "test": self.test}
        found |= {f"flashrag_{name}": self.file_of(name) for name in _FLASHRAG}
        return found if self.trex_popqa is None else found | {"trex_popqa": self.trex_popqa}

    def check(self) -> None:
        """Find a missing file before any work is done.

        Raises:
            UserError: names the file and the command that makes it.
        """
        made_by = {
            "search_r1_train": "examples/data_preprocess/preprocess_search_r1_dataset.py",
            "test": "examples/data_preprocess/preprocess_search_r1_dataset.py",
            "trex_popqa": "scripts/data/trex_popqa.py",
        }
        for name, path in self.inputs.items():
            if not path.is_file():
                raise UserError(
                    f"{path} does not exist; "
                    + (
                        f"{made_by[name]} makes it"
                        if name in made_by
                        else "download it from RUC-NLPIR/FlashRAG_datasets"
                    )
                )

    def rows(self, source: str) -> Iterator[QARow]:
        """All rows of one source, in file order.

        Raises:
            UserError: a missing or damaged file, a row that is not as it should be, or a file without any row.
        """
        path = self.file_of(source)
        if source == "popqa":
            found = read_popqa_like(path)
        elif source in _FLASHRAG:
            found = read_flashrag(path, source)
        else:
            found = (row for row in read_processed(path) if row.source == source)
        empty = True
        for row in found:
            empty = False
            yield row
        if empty:
            raise UserError(f"{path} has no row of {source}")


def read_jsonl(path: Path, advance: Callable[[int], None] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number (from 1) and object of every line; ``advance`` is told the bytes of each. Empty lines are allowed.

    Raises:
        UserError: the file is missing or not UTF-8, or a line is no JSON object.
    """
    number = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if advance:
                    advance(len(line))
                if not line.strip():
                    continue
                value = json.loads(line)
                if not isinstance(value, dict):
                    raise UserError(f"{path} line {number} is no JSON object; download the file again")
                yield number, value
    except FileNotFoundError:
        raise UserError(f"{path} does not exist")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error})") from error
    except ValueError as error:
        raise UserError(
            f"{path} line {number} is not JSON ({error}); the file is cut off or damaged, get it again"
        ) from error


def read_flashrag(path: Path, source: str) -> Iterator[QARow]:
    """Rows of a FlashRAG file: ``{"id", "question", "golden_answers", "metadata"}``. Its metadata is not kept.

    Raises:
        UserError: as :func:`read_jsonl`, or a row without a question or a list of answers.
    """
    for number, row in read_jsonl(path):
        try:
            question = ask(question_of(row.get("question")))
            yield QARow(source, question, answers_of(row.get("golden_answers")), {"id": str(row.get("id", number - 1))})
        except BadRow as error:
            raise UserError(f"{path} line {number}: {error}") from error


def read_popqa_like(path: Path) -> Iterator[QARow]:
    """Rows of ``trex_popqa_relations.jsonl``: FlashRAG's form, with ``subject`` and ``relation`` in the metadata.

    Raises:
        UserError: as :func:`read_flashrag`, or a row without its fact.
    """
    for number, row in read_jsonl(path):
        try:
            metadata = metadata_of(row.get("metadata"))
            subject, relation = metadata.get("subject"), metadata.get("relation")
            if not isinstance(subject, str) or relation not in TEMPLATES:
                raise BadRow("no subject and PopQA relation in its metadata; scripts/data/trex_popqa.py writes them")
            question = question_of(row.get("question"))
            kept = {"id": str(row.get("id", number - 1)), "relation": relation, "subject": subject}
            yield QARow("popqa", question, answers_of(row.get("golden_answers")), kept, subject, relation)
        except BadRow as error:
            raise UserError(f"{path} line {number}: {error}") from error
