"""The command behind ``examples/data_preprocess/preprocess_search_r1_dataset.py``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console

from agent_system.files import write_atomically
from rsipo.problems import UserError
from rsipo.run_files import locked
from rsipo.searchdata.dedup import TestQuestions
from rsipo.searchdata.download import DownloadOptions, HubFile, download, read_checksums
from rsipo.searchdata.files import write_json
from rsipo.searchdata.formats import read_processed
from rsipo.searchdata.hub import endpoint_of
from rsipo.searchdata.manifest import MANIFEST, already_built, make_request, write_manifest
from rsipo.searchdata.preprocess import REPOSITORY, SPLITS, process_split
from rsipo.searchdata.quality import QUALITY_JSON, QUALITY_TEXT, quality_line, quality_report, quality_text
from rsipo.searchdata.script import (
    Attempts,
    Check,
    Checksums,
    Endpoint,
    Force,
    LocalDir,
    Revision,
    Timeout,
    Unverified,
    make_console,
)


def preprocess_search_r1(
    local_dir: LocalDir,
    hf_repo_id: Annotated[
        str, typer.Option("--hf_repo_id", help="Dataset repository with train and test.parquet.")
    ] = REPOSITORY,
    raw_dir: Annotated[
        Optional[Path], typer.Option("--raw_dir", help="Folder with the two parquets already; nothing is downloaded.")
    ] = None,
    allow_other_counts: Annotated[
        bool,
        typer.Option("--allow_other_counts", help="Take files with other rows than the published 169,615 / 51,713."),
    ] = False,
    endpoint: Endpoint = None,
    revision: Revision = "main",
    sha256sums: Checksums = None,
    allow_unverified: Unverified = False,
    check: Check = False,
    attempts: Attempts = 8,
    timeout: Timeout = 60.0,
    force: Force = False,
) -> None:
    """Make train.parquet and test.parquet of the Search-R1 questions as the search environment reads them."""
    console = make_console()
    if raw_dir is None:
        raw_dir = local_dir / "raw"
        options = DownloadOptions(
            endpoint=endpoint_of(endpoint),
            revision=revision,
            checksums=read_checksums(sha256sums) if sha256sums else None,
            allow_unverified=allow_unverified,
            check=check,
            attempts=attempts,
            timeout_s=timeout,
        )
        download([HubFile(hf_repo_id, f"{split}.parquet") for split in SPLITS], raw_dir, options, console)
    preprocess(raw_dir, local_dir, allow_other_counts=allow_other_counts, force=force, console=console)


def preprocess(raw_dir: Path, out: Path, *, allow_other_counts: bool, force: bool, console: Console) -> None:
    """Convert both splits, and write the quality report and the manifest.

    Raises:
        UserError: an input is missing, damaged, or not the published one.
    """
    raw = {split: raw_dir / f"{split}.parquet" for split in SPLITS}
    for path in raw.values():
        if not path.is_file():
            raise UserError(f"{path} does not exist; leave --raw_dir out to download it")
    request = make_request("search-r1", {"allow_other_counts": allow_other_counts}, raw)
    with locked(out, "name another --local_dir"):
        _convert(raw, out, request, allow_other_counts, force, console)


def _convert(
    raw: Mapping[str, Path],
    out: Path,
    request: Mapping[str, Any],
    allow_other_counts: bool,
    force: bool,
    console: Console,
) -> None:
    if already_built(out, request, force=force):
        console.print(f"{out} holds exactly these files already; nothing to do", markup=False)
        return
    outputs: dict[str, int | None] = {}
    counts = {}
    for split in SPLITS:
        with console.status(f"converting {split}"):
            found = process_split(raw[split], out / f"{split}.parquet", split, published=not allow_other_counts)
        (out / MANIFEST).unlink(missing_ok=True)  # until the new one, the folder claims nothing
        counts[split] = dict(found)
        outputs[f"{split}.parquet"] = sum(found.values())
    with console.status("looking at the questions"):
        test = TestQuestions.read(out / "test.parquet")
        reports = {
            "train.parquet": quality_report(read_processed(out / "train.parquet"), test),
            "test.parquet": quality_report(read_processed(out / "test.parquet"), None),
        }
    write_json(out / QUALITY_JSON, reports)
    write_atomically(out / QUALITY_TEXT, quality_text(reports))
    write_manifest(out, request, {"rows": counts}, {**outputs, QUALITY_JSON: None, QUALITY_TEXT: None})
    for name, rows in outputs.items():
        console.print(f"{out / name}: {rows:,} rows; {quality_line(reports[name])}", markup=False)
    console.print(f"report: {out / QUALITY_TEXT}", markup=False)
