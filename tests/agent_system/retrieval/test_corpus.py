"""Rows by offset, and what is no corpus."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from agent_system.retrieval.corpus import Corpus, scan_rows, unpack
from agent_system.retrieval.types import IndexProblem


def test_rows_are_verbatim(corpus, corpus_file):
    lines = corpus_file.read_bytes().split(b"\n")
    assert len(corpus) == len(lines) == 64
    assert [corpus.row(number) for number in range(64)] == lines
    assert corpus.contents(1) == json.loads(lines[1])["contents"]
    assert list(corpus.texts(60)) == [json.loads(line)["contents"] for line in lines[60:]]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ('{"id": "0", "contents": "a"}\n\n', "line 2 is not JSON"),
        ('{"id": "0", "contents": "a"}\n{"id": "1", "conten', "line 2 is not JSON"),
        ('{"contents": "a"}', "line 1 has no id"),
        ('{"id": "0", "text": "a"}', "line 1 has no contents"),
        ("[1]", "line 1 has no id"),
    ],
)
def test_a_bad_line_is_named(tmp_path, text, problem):
    path = tmp_path / "c.jsonl"
    path.write_text(text)
    with pytest.raises(IndexProblem, match=problem):
        scan_rows(path)


def test_offsets_of_another_file_are_refused(corpus_file):
    with pytest.raises(IndexProblem, match="do not belong"):
        Corpus(corpus_file, np.array([0, 10], np.uint64))


def test_a_packed_corpus_that_is_cut_off_leaves_nothing(tmp_path):
    packed = gzip.compress(b'{"id": "0", "contents": "a"}\n' * 1000)
    (tmp_path / "c.jsonl.gz").write_bytes(packed[:-20])
    with pytest.raises(IndexProblem, match="could not be unpacked"):
        unpack(tmp_path / "c.jsonl.gz", tmp_path / "c.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl.gz"]
