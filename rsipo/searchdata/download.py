"""The downloads of search-based QA: which files, where they go, and the record that makes a second call cheap."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from agent_system.files import file_sha256
from rsipo.problems import UserError
from rsipo.run_files import locked
from rsipo.searchdata.files import write_json
from rsipo.searchdata.hub import RemoteFile, TransientError, describe, make_client
from rsipo.searchdata.progress import meter
from rsipo.searchdata.transfer import fetch, incomplete_path, retrying

RECORD = "downloads.json"
_FREE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file to download.

    Attributes:
        repo: dataset repository.
        name: file in it, and its name here.
        becomes: the file that is made of it and may stand in its place (``gzip -d``, ``cat part_*``), if any.
    """

    repo: str
    name: str
    becomes: str | None = None


#: Index and corpus of the retriever. ``cat part_* > e5_Flat.index`` and ``gzip -d wiki-18.jsonl.gz`` come afterwards.
RETRIEVER_FILES = (
    HubFile("PeterJinGo/wiki-18-e5-index", "part_aa", "e5_Flat.index"),
    HubFile("PeterJinGo/wiki-18-e5-index", "part_ab", "e5_Flat.index"),
    HubFile("PeterJinGo/wiki-18-corpus", "wiki-18.jsonl.gz", "wiki-18.jsonl"),
)


@dataclass(frozen=True, slots=True)
class DownloadOptions:
    """How to download.

    Attributes:
        endpoint: address of the hub or a mirror.
        revision: branch, tag or commit.
        checksums: sha256 per file name, for a mirror that gives none; they win over the server's.
        allow_unverified: take a file for which there is no checksum at all.
        check: read files that are there already once more, and compare.
        attempts: failures in a row, without a byte in between, before it gives up.
        timeout_s: seconds of silence after which a connection is given up.
    """

    endpoint: str
    revision: str = "main"
    checksums: Mapping[str, str] | None = None
    allow_unverified: bool = False
    check: bool = False
    attempts: int = 8
    timeout_s: float = 60.0


def download(files: Sequence[HubFile], folder: Path, options: DownloadOptions, console: Console) -> dict[str, Any]:
    """Bring the files into ``folder``; what is complete stays, what is half there is continued.

    Returns:
        The record of the folder: name -> ``repo``, ``version``, ``bytes``, ``sha256``, ``verified_by``.

    Raises:
        UserError: a file cannot be had or is not what it should be; the others are kept, as is what was fetched of it.
    """
    with locked(folder, "name another --local_dir"), make_client(options.timeout_s) as client:
        record = _read_record(folder)
        missing = [file for file in files if not _is_there(file, folder, record, options, console)]
        try:
            remotes = {file.name: _describe(client, file, options, console) for file in missing}
            _check_space(folder, list(remotes.values()))
            for file in missing:
                record[file.name] = _fetch(client, file, remotes[file.name], folder, options, console)
                write_json(folder / RECORD, record)
        except TransientError as error:
            raise UserError(f"{error}; given up, run the same command again to go on") from error
    return record


def read_checksums(path: Path) -> dict[str, str]:
    """Read a file as ``sha256sum`` writes it.

    Raises:
        UserError: it is missing, or a line has another form.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error})") from error
    found = {}
    for number, line in enumerate(lines, start=1):
        digest, _, name = line.strip().partition(" ")
        if len(digest) != 64 or not name.strip():
            raise UserError(f"{path} line {number} is not 'SHA256  NAME', as sha256sum writes it")
        found[name.strip().lstrip("*")] = digest.lower()
    return found


def _describe(client: httpx.Client, file: HubFile, options: DownloadOptions, console: Console) -> RemoteFile:
    for attempt in retrying(options.attempts, say=lambda line: console.print(line, markup=False)):
        with attempt:
            return describe(client, options.endpoint, file.repo, options.revision, file.name)
    raise AssertionError  # retrying returns or raises


def _fetch(
    client: httpx.Client, file: HubFile, remote: RemoteFile, folder: Path, options: DownloadOptions, console: Console
) -> dict[str, Any]:
    given = (options.checksums or {}).get(file.name)
    checksum = f"sha256:{given}" if given else remote.checksum
    if checksum is None and not options.allow_unverified:
        raise UserError(
            f"{remote.url}: the server gives no checksum; name one with --sha256sums, or give --allow_unverified"
        )
    with meter(console, file.name, remote.size, "bytes") as progress:
        sha256 = fetch(
            client,
            remote,
            folder / file.name,
            checksum,
            attempts=options.attempts,
            advance=progress.advance,
            say=lambda line: console.print(line, markup=False),
        )
    console.print(f"{file.name}: {remote.size:,} bytes, {checksum or 'unverified'}", markup=False, highlight=False)
    return {
        "repo": file.repo,
        "version": remote.version or options.revision,
        "bytes": remote.size,
        "sha256": sha256,
        "verified_by": checksum,
    }


def _is_there(file: HubFile, folder: Path, record: dict[str, Any], options: DownloadOptions, console: Console) -> bool:
    """Whether nothing is to be done for a file. One that was changed since, or that nobody recorded, is an error."""
    path, known = folder / file.name, record.get(file.name)
    made = folder / file.becomes if file.becomes else None
    if not path.exists():
        if known and made is not None and made.exists():
            console.print(f"{file.name}: already made into {made.name}", markup=False)
            return True
        return False
    if known is None:
        raise UserError(f"{path} is there but no download of this script; move it away, or its folder's {RECORD} back")
    if path.stat().st_size != known["bytes"] or (options.check and file_sha256(path) != known["sha256"]):
        raise UserError(f"{path} has changed since it was downloaded; remove it and run again")
    console.print(f"{file.name}: already there{', checked' if options.check else ''}", markup=False)
    return True


def _check_space(folder: Path, remotes: Sequence[RemoteFile]) -> None:
    have = sum(part.stat().st_size for remote in remotes if (part := incomplete_path(folder / remote.name)).exists())
    needed = sum(remote.size for remote in remotes) - have
    free = shutil.disk_usage(folder).free
    if remotes and free < needed + _FREE_BYTES:
        raise UserError(f"{folder} has {free / 2**30:.1f} GiB free, the downloads need {needed / 2**30 + 1:.1f} GiB")


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: {**entry, "bytes": int(entry["bytes"]), "sha256": str(entry["sha256"])}
            for name, entry in record.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error}); remove it and the files it stands for, and run again") from error
