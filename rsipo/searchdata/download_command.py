"""The command behind ``examples/search/searchr1_download.py``."""

from __future__ import annotations

from rsipo.searchdata.download import RETRIEVER_FILES, DownloadOptions, download, read_checksums
from rsipo.searchdata.hub import endpoint_of
from rsipo.searchdata.script import (
    Attempts,
    Check,
    Checksums,
    Endpoint,
    LocalDir,
    Revision,
    Timeout,
    Unverified,
    make_console,
)


def searchr1_download(
    local_dir: LocalDir,
    endpoint: Endpoint = None,
    revision: Revision = "main",
    sha256sums: Checksums = None,
    allow_unverified: Unverified = False,
    check: Check = False,
    attempts: Attempts = 8,
    timeout: Timeout = 60.0,
) -> None:
    """Download the e5 index (part_aa, part_ab) and the 2018 Wikipedia corpus of Search-R1; run it again to go on."""
    options = DownloadOptions(
        endpoint=endpoint_of(endpoint),
        revision=revision,
        checksums=read_checksums(sha256sums) if sha256sums else None,
        allow_unverified=allow_unverified,
        check=check,
        attempts=attempts,
        timeout_s=timeout,
    )
    console = make_console()
    download(RETRIEVER_FILES, local_dir, options, console)
    console.print(
        f"next: cat {local_dir}/part_* > {local_dir}/e5_Flat.index; gzip -d {local_dir}/wiki-18.jsonl.gz", markup=False
    )
