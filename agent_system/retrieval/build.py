"""From a corpus, and vectors or an encoder, to an index folder."""

from __future__ import annotations

import fcntl
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, cast

import numpy as np

from agent_system.retrieval.corpus import Corpus, scan_rows, unpack
from agent_system.retrieval.encoders import Encoder, Precision, SentenceEncoder, describe_encoder, encoder_identity
from agent_system.retrieval.engine import Engine
from agent_system.retrieval.file_facts import FileFacts, Progress
from agent_system.retrieval.indexes import open_index
from agent_system.retrieval.indexes.vectors import encode_corpus, join_parts, open_vectors
from agent_system.retrieval.manifest import MANIFEST, EncoderFacts, IndexKind, Manifest
from agent_system.retrieval.types import IndexProblem

#: Called with the stage's name, what is done of it, and all of it.
StageProgress = Callable[[str, int, int], None]

_CAST_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What to build.

    Attributes:
        corpus: ``.jsonl`` or ``.jsonl.gz`` in the wiki-18 form.
        kind: of index.
        encoder: model folder; needed by all kinds but ``bm25``.
        vectors: ready vectors of the corpus' rows: a NumPy file, a FAISS flat index, or the parts of one in order.
            Without them the corpus is encoded.
        query_prefix, passage_prefix: see ``describe_encoder``.
        precision: of the encoder.
        dtype: of the ``matrix`` kind.
        lists, nprobe: inverted lists of ``ivf-sq8`` (None: the root of the rows, at most 4096), and how many to visit.
    """

    corpus: Path
    kind: IndexKind
    encoder: Path | None = None
    vectors: Sequence[Path] = ()
    query_prefix: str | None = None
    passage_prefix: str | None = None
    precision: Precision = "float32"
    dtype: Literal["float32", "float16"] = "float32"
    lists: int | None = None
    nprobe: int = 64


def build_index(
    folder: Path, request: BuildRequest, progress: StageProgress = lambda *_: None
) -> tuple[Manifest, Literal["built", "reused"]]:
    """Builds into ``folder``, or finds the index there that was asked for.

    An interrupted build goes on from where it was; encoding the corpus, the longest stage, from its last chunk. The
    finished index is tried before its manifest is written.

    Raises:
        IndexProblem: a missing or damaged input; parts that do not fit; the folder holds another index, or is in use.
    """
    if (request.kind == "bm25") != (request.encoder is None):
        raise IndexProblem(f"a {request.kind} index {'has no' if request.encoder else 'needs an'} encoder")
    for path in (request.corpus, *request.vectors):
        if not path.is_file():
            raise IndexProblem(f"{path} is missing; name an existing file")
    folder.mkdir(parents=True, exist_ok=True)
    with _only_builder(folder):
        if (folder / MANIFEST).exists():
            return _reuse(folder, request), "reused"
        return _Builder(folder, request, progress).build(), "built"


class _Builder:
    def __init__(self, folder: Path, request: BuildRequest, progress: StageProgress) -> None:
        self._folder = folder
        self._request = request
        self._progress = progress

    def build(self) -> Manifest:
        request, folder = self._request, self._folder
        facts = self._describe_encoder()
        source = FileFacts.of(request.corpus, folder, self._stage("reading the corpus"))
        corpus, corpus_facts = self._corpus(source)
        model: Encoder | None = None
        if facts is None:
            files = self._word_index(corpus)
        else:
            model = SentenceEncoder(facts, precision=request.precision)
            files = [self._vector_index(corpus, corpus_facts, model, facts)]
        manifest = Manifest(
            kind=request.kind,
            rows=len(corpus),
            source=source,
            corpus=corpus_facts,
            offsets=FileFacts.of(folder / "offsets.npy", folder),
            index=[FileFacts.of(file, folder, self._stage("hashing the index")) for file in files],
            encoder=facts,
            nprobe=request.nprobe if request.kind == "ivf-sq8" else None,
        )
        self._progress("trying the index", 0, 1)
        Engine(corpus, open_index(manifest, folder), model, manifest.fingerprint).check()
        manifest.save(folder)
        return manifest

    def _stage(self, name: str) -> Progress:
        return partial(self._progress, name)

    def _describe_encoder(self) -> EncoderFacts | None:
        request = self._request
        if request.encoder is None:
            return None
        return describe_encoder(
            request.encoder, query_prefix=request.query_prefix, passage_prefix=request.passage_prefix
        )

    def _corpus(self, source: FileFacts) -> tuple[Corpus, FileFacts]:
        path = self._request.corpus
        if path.suffix == ".gz":
            path = self._folder / "corpus.jsonl"
            unpack(self._request.corpus, path, self._stage("unpacking the corpus"))
        offsets, sha256 = scan_rows(path, self._stage("checking the corpus"))
        np.save(self._folder / "offsets.npy", offsets)
        return Corpus(path, offsets), FileFacts.known(path, self._folder, sha256)

    def _word_index(self, corpus: Corpus) -> list[Path]:
        from agent_system.retrieval.indexes.bm25 import build_bm25

        self._progress("indexing words", 0, 1)
        target = self._folder / "bm25"
        shutil.rmtree(target, ignore_errors=True)
        build_bm25(corpus.texts(), target)
        return sorted(target.iterdir())

    def _vector_index(self, corpus: Corpus, corpus_facts: FileFacts, model: Encoder, facts: EncoderFacts) -> Path:
        request, folder = self._request, self._folder
        if len(request.vectors) == 1:
            source = request.vectors[0]
        elif request.vectors:
            source = folder / "vectors.index"
            join_parts(request.vectors, source, self._stage("joining the parts"))
        else:
            source = folder / "vectors.npy"
            key = f"{corpus_facts.sha256} {facts.identity} {facts.passage_prefix}"
            encode_corpus(corpus.texts, len(corpus), model, source, key, self._stage("encoding passages"))
        vectors = open_vectors(source)
        if vectors.shape != (len(corpus), model.dimension):
            raise IndexProblem(
                f"{source} holds {vectors.shape[0]} vectors of {vectors.shape[1]} numbers; the corpus has {len(corpus)} rows, "
                f"the encoder {model.dimension} numbers"
            )
        return self._shape(source, vectors)

    def _shape(self, source: Path, vectors: np.ndarray) -> Path:
        """The vectors in the form the kind of index wants them."""
        request, folder = self._request, self._folder
        if request.kind == "matrix":
            return source if vectors.dtype == request.dtype else self._cast(vectors)
        if request.kind == "flat" and source.suffix != ".npy":
            return source
        from agent_system.retrieval.indexes.faiss_index import FaissKind, build_faiss

        target = folder / f"{request.kind}.index"
        lists = request.lists or min(4096, math.isqrt(len(vectors)))
        build_faiss(
            cast(FaissKind, request.kind), vectors, target, lists=lists, progress=self._stage("filling the index")
        )
        if source.parent == folder:
            source.unlink()  # made here, and no longer needed
        return target

    def _cast(self, vectors: np.ndarray) -> Path:
        target = self._folder / f"vectors.{self._request.dtype}.npy"
        out = np.lib.format.open_memmap(target, mode="w+", dtype=self._request.dtype, shape=vectors.shape)
        for start in range(0, len(vectors), _CAST_ROWS):
            out[start : start + _CAST_ROWS] = vectors[start : start + _CAST_ROWS]
            self._progress("converting vectors", min(start + _CAST_ROWS, len(vectors)), len(vectors))
        out.flush()
        return target


def _reuse(folder: Path, request: BuildRequest) -> Manifest:
    """The finished index of ``folder``, if it is the one asked for."""
    manifest = Manifest.load(folder)
    encoder = encoder_identity(request.encoder) if request.encoder else None
    known = manifest.encoder.identity if manifest.encoder else None
    source = FileFacts.known(request.corpus, folder, manifest.source.sha256)
    if manifest.kind == request.kind and encoder == known and source.probe == manifest.source.probe:
        return manifest
    raise IndexProblem(f"{folder} holds an index of another kind, corpus or encoder; name another folder or remove it")


@contextmanager
def _only_builder(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise IndexProblem(f"another process builds in {folder}; wait for it or name another folder") from None
        yield
