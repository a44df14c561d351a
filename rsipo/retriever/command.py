"""The words of ``rsipo retriever …``. Heavy imports happen inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

from rsipo.problems import UserError

retriever_app = typer.Typer(no_args_is_help=True, help="Build, serve and measure the passage retriever.")

Kind = Literal["bm25", "matrix", "flat", "sq8", "ivf-sq8"]
Precision = Literal["float32", "bfloat16"]

_Index = Annotated[Path, typer.Argument(help="Index folder.", metavar="INDEX")]
_Encoder = Annotated[Optional[Path], typer.Option(help="Folder of a sentence-transformers model, e.g. e5-base-v2.")]
_Precision = Annotated[Precision, typer.Option(help="Arithmetic of the encoder.")]
_Threads = Annotated[int, typer.Option(min=0, help="Threads of encoder and search; 0: half of the cores.")]


@retriever_app.command("build")
def build(
    out: Annotated[Path, typer.Argument(help="Index folder to make.", metavar="INDEX")],
    corpus: Annotated[Path, typer.Option(help='JSON lines {"id", "contents"}, also as .gz.')],
    kind: Annotated[
        Kind, typer.Option(help="bm25 needs no encoder; sq8 and ivf-sq8 are smaller than exact ones.")
    ] = "bm25",
    encoder: _Encoder = None,
    vectors: Annotated[
        Optional[list[Path]],
        typer.Option(help="Ready vectors: e5_Flat.index, its parts in order (repeat the option), or a NumPy file."),
    ] = None,
    dtype: Annotated[Literal["float32", "float16"], typer.Option(help="Of a matrix.")] = "float32",
    lists: Annotated[
        int, typer.Option(min=0, help="Inverted lists of ivf-sq8; 0: the root of the rows, at most 4096.")
    ] = 0,
    nprobe: Annotated[int, typer.Option(min=1, help="Inverted lists to visit per query.")] = 64,
    query_prefix: Annotated[
        Optional[str], typer.Option(help="Put before queries; default: what the model asks for.")
    ] = None,
    passage_prefix: Annotated[Optional[str], typer.Option(help="Put before passages.")] = None,
    precision: _Precision = "float32",
    threads: _Threads = 0,
) -> None:
    """Make an index folder from a corpus. An interrupted build goes on; a finished one is reused."""
    from rsipo.retriever.build import build_command

    build_command(
        out,
        threads=threads,
        corpus=corpus,
        kind=kind,
        encoder=encoder,
        vectors=tuple(vectors or ()),
        dtype=dtype,
        lists=lists or None,
        nprobe=nprobe,
        query_prefix=query_prefix,
        passage_prefix=passage_prefix,
        precision=precision,
    )


@retriever_app.command("serve")
def serve(
    index: _Index,
    host: Annotated[str, typer.Option(help="Address to listen on. Anyone who reaches it may search.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8000,
    encoder: _Encoder = None,
    precision: _Precision = "float32",
    threads: _Threads = 0,
    top_k: Annotated[int, typer.Option(min=1, max=100, help="Passages where a request does not say.")] = 3,
    max_batch: Annotated[int, typer.Option(min=1, help="Queries per search.")] = 64,
    window_ms: Annotated[float, typer.Option(min=0, help="How long a first query waits for company.")] = 3.0,
    max_waiting: Annotated[int, typer.Option(min=1, help="Distinct waiting queries; beyond them: 503.")] = 4096,
    cache: Annotated[int, typer.Option(min=0, help="Answers to keep.")] = 65536,
    timeout: Annotated[float, typer.Option(min=0.1, help="Most seconds for a request.")] = 60.0,
    verify: Annotated[bool, typer.Option("--verify", help="Compare whole files with their hashes first.")] = False,
    address_file: Annotated[Optional[Path], typer.Option(help="Write the URL here once the port is open.")] = None,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="End when the starting process has ended.")
    ] = False,
) -> None:
    """Serve an index folder over HTTP until SIGTERM."""
    _require_packages()
    from agent_system.retrieval.service import ServiceSettings
    from agent_system.retrieval.threads import default_threads
    from rsipo.retriever.parent import end_with_parent
    from rsipo.retriever.serve import serve as run

    if with_parent:
        end_with_parent()
    settings = ServiceSettings(
        top_k=top_k,
        threads=threads or default_threads(),
        max_batch=max_batch,
        window_s=window_ms / 1000,
        max_waiting=max_waiting,
        cache_size=cache,
        timeout_s=timeout,
    )
    run(
        index,
        settings,
        host=host,
        port=port,
        encoder=encoder,
        precision=precision,
        every_byte=verify,
        address_file=address_file,
    )


@retriever_app.command("bench")
def bench(
    index: _Index,
    queries: Annotated[Path, typer.Option(help='Query log: JSON lines {"query"}, also as .gz.')],
    clients: Annotated[int, typer.Option(min=1)] = 64,
    requests: Annotated[int, typer.Option(min=8, help="Per workload, at most.")] = 2000,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each server.")] = 1,
    out: Annotated[Optional[Path], typer.Option(help="Also write the numbers here, as JSON.")] = None,
) -> None:
    """Compare this service with a plain one-by-one server: requests per second and core, with and without repeats."""
    _require_packages()
    from rsipo.retriever.bench import bench_command

    bench_command(index, queries, clients=clients, requests=requests, threads=threads, out=out)


def _require_packages() -> None:
    try:
        import cachetools  # noqa: F401
        import fastapi  # noqa: F401
        import orjson  # noqa: F401
        import prometheus_client  # noqa: F401
        import threadpoolctl  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError(f'the retriever needs a package ({error}); pip install "rsipo[search]"') from error
