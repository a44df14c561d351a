"""The command behind ``scripts/data/search_train_*.py``: one training set per base model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agent_system.files import write_atomically
from rsipo.problems import UserError
from rsipo.run_files import locked
from rsipo.searchdata.build import Choices, SimilarityFilter, TrainSet, build_train_set
from rsipo.searchdata.dedup import REASONS, TestQuestions
from rsipo.searchdata.embeddings import QuestionEncoder, cached_embeddings
from rsipo.searchdata.files import write_json
from rsipo.searchdata.formats import write_processed
from rsipo.searchdata.manifest import MANIFEST, already_built, make_request, write_manifest
from rsipo.searchdata.progress import meter, meters
from rsipo.searchdata.quality import QUALITY_JSON, QUALITY_TEXT, quality_line, quality_report, quality_text
from rsipo.searchdata.sources import SourceFiles

RL_FILE, SFT_FILE = "train.parquet", "sft_tasks.parquet"
SIMILARITY = "similarity.json"


@dataclass(frozen=True, slots=True)
class Profile:
    """What differs between the base models.

    Attributes:
        name: of the builder, for the manifest.
        popqa: whether PopQA-like questions are among the sources.
        encoder: default of ``--encoder``.
        sft_mix: default of ``--sft-mix``.
    """

    name: str
    popqa: bool
    encoder: str
    sft_mix: str


PROFILES = {
    "qwen2.5-7b": Profile("qwen2.5-7b", popqa=False, encoder="none", sft_mix="equal"),
    "qwen2.5-3b": Profile("qwen2.5-3b", popqa=True, encoder="intfloat/e5-base-v2", sft_mix="natural"),
    "qwen3-1.7b": Profile("qwen3-1.7b", popqa=True, encoder="intfloat/e5-base-v2", sft_mix="equal"),
}
#: A choice of this project for the one encoder that is the default; cosines of other models lie elsewhere.
DEFAULT_THRESHOLDS = {"intfloat/e5-base-v2": 0.95}


def threshold_of(encoder: str, option: float | None) -> float | None:
    """The similarity threshold: the option, else the encoder's default, None without an encoder.

    Raises:
        UserError: no threshold for this encoder, or one without an encoder.
    """
    if encoder == "none":
        if option is not None:
            raise UserError("--similarity-threshold needs an --encoder")
        return None
    if option is None and encoder not in DEFAULT_THRESHOLDS:
        raise UserError(f"--encoder {encoder} needs a --similarity-threshold of its own: cosines differ between models")
    return DEFAULT_THRESHOLDS[encoder] if option is None else option


def build_command(
    profile: Profile,
    files: SourceFiles,
    out: Path,
    choices: Choices,
    *,
    encoder: str,
    cache: Path,
    force: bool,
    console: Console,
) -> None:
    """Build a training set into ``out``: two parquets, the quality report, the similar pairs, and the manifest.

    Args:
        profile: of the base model.
        files: the inputs.
        out: the folder; one that holds another set is refused unless ``force``.
        choices: printed, and written to the manifest.
        encoder: folder or hub name, ``none`` for no check by embedding.
        cache: ``.npy`` of the test questions' embeddings.
        force: replace another set.
        console: for what is said.

    Raises:
        UserError: whatever is wrong with the inputs or the choices.
    """
    files.check()
    _say_choices(profile, choices, encoder, console)
    with console.status("hashing the inputs"):
        options = {**choices.as_record(), "encoder": None}
        model = None
        if encoder != "none":
            from rsipo.searchdata.encoder import SentenceQuestionEncoder

            model = SentenceQuestionEncoder(encoder)
            options["encoder"] = {"name": Path(encoder).name, "identity": model.identity}
        request = make_request(profile.name, options, files.inputs)
    with locked(out, "name another --out"):
        _build(files, out, choices, model, cache, request, force, console)


def _build(
    files: SourceFiles,
    out: Path,
    choices: Choices,
    model: QuestionEncoder | None,
    cache: Path,
    request: Mapping[str, Any],
    force: bool,
    console: Console,
) -> None:
    if already_built(out, request, force=force):
        console.print(f"{out} holds exactly this set already; nothing to do", markup=False)
        return
    test = TestQuestions.read(files.test)
    console.print(f"staying away from {len(test.questions):,} test questions, {len(test.facts):,} facts", markup=False)
    similarity = None
    if model is not None and choices.threshold is not None:
        with meter(console, "embedding the test questions", len(test.questions)) as progress:
            embeddings, cached = cached_embeddings(model, test.questions, cache, progress.advance)
        console.print(f"test embeddings {'from' if cached else 'written to'} {cache}", markup=False)
        similarity = SimilarityFilter(model, test, embeddings, choices.threshold)
    with meters(console) as start:
        reading = start("reading the sources")
        comparing = None if similarity is None else start("comparing with the test set")
        built = build_train_set(
            files,
            test,
            choices,
            similarity=similarity,
            advance=reading.advance,
            examined=comparing.advance if comparing else lambda _: None,
        )
    _write(out, built, test, request, console)


def _write(out: Path, built: TrainSet, test: TestQuestions, request: Mapping[str, Any], console: Console) -> None:
    (out / MANIFEST).unlink(missing_ok=True)  # until the new one, the folder claims nothing
    write_processed(out / RL_FILE, built.rl, "train")
    write_processed(out / SFT_FILE, built.sft, "sft")
    reports = {RL_FILE: quality_report(built.rl, test), SFT_FILE: quality_report(built.sft, test)}
    write_json(out / QUALITY_JSON, reports)
    write_atomically(out / QUALITY_TEXT, quality_text(reports))
    similar = {"percentiles": built.similarity, "left_out": built.too_similar, "closest_kept": built.closest_kept}
    write_json(out / SIMILARITY, similar)
    results = {
        "sources": {name: dict(counts) for name, counts in built.counts.items()},
        "test_questions": len(test.questions),
        "test_facts": len(test.facts),
        "sft_rows_among_rl_rows": sum(counts["both"] for counts in built.counts.values()),
        "similarity_percentiles": built.similarity,
    }
    outputs = {RL_FILE: len(built.rl), SFT_FILE: len(built.sft)}
    others = {QUALITY_JSON: None, QUALITY_TEXT: None, SIMILARITY: None}
    described = write_manifest(out, request, results, {**outputs, **others})
    console.print(_counts_table(built))
    if built.similarity:
        points = ", ".join(f"{name} {value:.3f}" for name, value in built.similarity.items())
        console.print(f"largest cosine with a test question, over the rows examined: {points}", markup=False)
    for name, rows in outputs.items():
        found = f"{quality_line(reports[name])}; sha256 {described[name]['sha256']}"
        console.print(f"{out / name}: {rows:,} rows; {found}", markup=False)
    console.print(f"report: {out / QUALITY_TEXT}", markup=False)


def _say_choices(profile: Profile, choices: Choices, encoder: str, console: Console) -> None:
    said = {**choices.as_record(), "encoder": encoder}
    console.print(f"{profile.name}: " + ", ".join(f"{name} {value}" for name, value in said.items()), markup=False)
    if encoder == "none":
        console.print(
            "no check by embedding (--encoder none): by question and by (subject, relation) only", markup=False
        )


def _counts_table(built: TrainSet) -> Table:
    lines = ["read", *REASONS, "available", "examined", "too_similar", "rl", "sft", "both"]
    table = Table("rows", *built.counts)
    for line in lines:
        table.add_row(line.replace("_", " "), *(f"{counts[line]:,}" for counts in built.counts.values()))
    return table
