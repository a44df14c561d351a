from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rsipo.problems import UserError
from rsipo.searchdata import transfer
from rsipo.searchdata.download import RECORD, DownloadOptions, HubFile, download, read_checksums
from rsipo.searchdata.hub import endpoint_of
from rsipo.searchdata.transfer import incomplete_path

REPO = "someone/index"
CONTENT = os.urandom(300_000)
FILES = (HubFile(REPO, "part_aa", "whole.index"), HubFile(REPO, "part_ab", "whole.index"))


@pytest.fixture
def options(mirror) -> DownloadOptions:
    mirror.files = {(REPO, "part_aa"): CONTENT, (REPO, "part_ab"): CONTENT[::-1]}
    return DownloadOptions(mirror.url, attempts=2, timeout_s=10)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch) -> None:
    monkeypatch.setattr(transfer, "MAX_WAIT_SECONDS", 0.0)


@pytest.mark.parametrize("large", [True, False])
def test_files_come_whole_checked_and_recorded(mirror, options, tmp_path, console, large):
    mirror.large = large
    record = download(FILES, tmp_path, options, console)
    assert (tmp_path / "part_aa").read_bytes() == CONTENT
    assert (tmp_path / "part_ab").read_bytes() == CONTENT[::-1]
    entry = record["part_aa"]
    assert entry["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert entry["verified_by"].startswith("sha256:" if large else "git-sha1:")
    assert json.loads((tmp_path / RECORD).read_text()) == record
    assert all("/resolve/main/" in path for method, path, _ in mirror.requests if method == "HEAD")
    assert all(
        "/resolve/c0ffee" in path for method, path, _ in mirror.requests if method == "GET" and "resolve" in path
    )


def test_nothing_is_asked_for_what_is_there(mirror, options, tmp_path, console):
    download(FILES, tmp_path, options, console)
    mirror.requests.clear()
    download(FILES, tmp_path, options, console)
    assert mirror.requests == []
    (tmp_path / "part_ab").write_bytes(CONTENT)  # the right size
    download(FILES, tmp_path, options, console)
    with pytest.raises(UserError, match=r"part_ab has changed since it was downloaded"):
        download(FILES, tmp_path, replace(options, check=True), console)


def test_parts_may_be_gone_once_they_were_joined(mirror, options, tmp_path, console):
    download(FILES, tmp_path, options, console)
    (tmp_path / "whole.index").write_bytes(CONTENT + CONTENT[::-1])
    for file in FILES:
        (tmp_path / file.name).unlink()
    mirror.requests.clear()
    download(FILES, tmp_path, options, console)
    assert mirror.requests == []


def test_broken_connections_are_continued_where_they_broke(mirror, options, tmp_path, console):
    mirror.cut_after = [100_000, 50_000]  # each makes progress, so two attempts in a row are enough
    download(FILES[:1], tmp_path, options, console)
    assert mirror.ranges_asked("part_aa") == [None, "bytes=100000-", "bytes=150000-"]
    assert (tmp_path / "part_aa").read_bytes() == CONTENT


def test_a_later_call_goes_on_where_the_first_gave_up(mirror, options, tmp_path, console):
    mirror.cut_after = [100_000, 0, 0]
    with pytest.raises(UserError, match="run the same command again"):
        download(FILES[:1], tmp_path, options, console)
    assert not list(tmp_path.glob("part_*"))  # `cat part_*` finds no half file
    assert incomplete_path(tmp_path / "part_aa").stat().st_size == 100_000
    mirror.requests.clear()
    mirror.cut_after.clear()
    download(FILES[:1], tmp_path, options, console)
    assert mirror.ranges_asked("part_aa") == ["bytes=100000-"]
    assert (tmp_path / "part_aa").read_bytes() == CONTENT
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", RECORD, "part_aa"]


def test_a_server_without_ranges_begins_anew(mirror, options, tmp_path, console):
    mirror.ranges = False
    mirror.cut_after = [100_000]
    download(FILES[:1], tmp_path, options, console)
    assert (tmp_path / "part_aa").read_bytes() == CONTENT


def test_half_a_file_of_another_version_is_not_continued(mirror, options, tmp_path, console):
    mirror.cut_after = [100_000, 0, 0]
    with pytest.raises(UserError):
        download(FILES[:1], tmp_path, options, console)
    newer = os.urandom(250_000)
    mirror.files[REPO, "part_aa"] = newer
    mirror.cut_after.clear()
    download(FILES[:1], tmp_path, options, console)
    assert (tmp_path / "part_aa").read_bytes() == newer


def test_damaged_bytes_are_removed(mirror, options, tmp_path, console):
    sums = {"part_aa": "0" * 64}
    with pytest.raises(UserError, match=r"what came is not sha256:0000.*run again"):
        download(FILES[:1], tmp_path, replace(options, checksums=sums), console)
    assert not (tmp_path / "part_aa").exists()
    assert not incomplete_path(tmp_path / "part_aa").exists()


def test_half_a_file_that_was_tampered_with_is_found(mirror, options, tmp_path, console):
    mirror.cut_after = [100_000, 0, 0]
    with pytest.raises(UserError):
        download(FILES[:1], tmp_path, options, console)
    part = incomplete_path(tmp_path / "part_aa")
    part.write_bytes(b"x" + part.read_bytes()[1:])
    mirror.cut_after.clear()
    with pytest.raises(UserError, match="what came is not"):
        download(FILES[:1], tmp_path, options, console)
    download(FILES[:1], tmp_path, options, console)
    assert (tmp_path / "part_aa").read_bytes() == CONTENT


def test_no_checksum_needs_a_word(mirror, options, tmp_path, console):
    mirror.checksums = False
    with pytest.raises(UserError, match=r"gives no checksum.*--allow_unverified"):
        download(FILES[:1], tmp_path, options, console)
    good = {"part_aa": hashlib.sha256(CONTENT).hexdigest()}
    assert download(FILES[:1], tmp_path / "a", replace(options, checksums=good), console)["part_aa"]["verified_by"]
    record = download(FILES[:1], tmp_path / "b", replace(options, allow_unverified=True), console)
    assert record["part_aa"]["verified_by"] is None


def test_a_busy_server_is_asked_again(mirror, options, tmp_path, console):
    mirror.statuses = [(503, {"Retry-After": "0"})]
    download(FILES[:1], tmp_path, options, console)
    assert (tmp_path / "part_aa").read_bytes() == CONTENT


@pytest.mark.parametrize(("status", "words"), [(401, "set HF_TOKEN"), (404, "check the repository"), (500, "given up")])
def test_refusals_are_one_clear_line(mirror, options, tmp_path, console, status, words):
    mirror.statuses = [(status, {})] * 9
    with pytest.raises(UserError, match=words) as error:
        download(FILES, tmp_path, options, console)
    assert "\n" not in str(error.value)


def test_a_server_that_is_not_there(options, tmp_path, console):
    with pytest.raises(UserError, match="given up, run the same command again"):
        download(FILES, tmp_path, replace(options, endpoint="http://127.0.0.1:9"), console)
    with pytest.raises(UserError, match="correct --endpoint"):
        download(FILES, tmp_path, replace(options, endpoint="nowhere"), console)


def test_a_file_of_unknown_origin_is_not_overwritten(options, tmp_path, console):
    (tmp_path / "part_aa").write_bytes(b"precious")
    with pytest.raises(UserError, match="no download of this script"):
        download(FILES, tmp_path, options, console)
    assert (tmp_path / "part_aa").read_bytes() == b"precious"


def test_too_little_space_is_said_before_it_begins(mirror, options, tmp_path, console, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(UserError, match="GiB free, the downloads need"):
        download(FILES, tmp_path, options, console)
    assert mirror.ranges_asked("part_aa") == []


def test_endpoint_comes_from_the_option_the_environment_or_the_hub(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror/")
    assert endpoint_of(None) == "http://mirror"
    assert endpoint_of("http://other") == "http://other"
    monkeypatch.setenv("HF_ENDPOINT", " ")
    assert endpoint_of(None) == "https://huggingface.co"


def test_checksum_files(tmp_path: Path):
    file = tmp_path / "sums"
    file.write_text(f"{'a' * 64}  part_aa\n{'B' * 64} *part_ab\n")
    assert read_checksums(file) == {"part_aa": "a" * 64, "part_ab": "b" * 64}
    file.write_text("abc part_aa\n")
    with pytest.raises(UserError, match="line 1 is not"):
        read_checksums(file)
