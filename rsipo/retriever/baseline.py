"""The public retrieval server's design, for comparison: a plain handler that searches one query at a time.

    python -m rsipo.retriever.baseline INDEX --port 0 --address-file FILE

It answers the same two request forms with the same rows. It has no batches, no cache, no queue and no deadlines.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
import uvicorn
from fastapi import FastAPI

from agent_system.files import write_atomically
from agent_system.retrieval.engine import Engine, open_engine
from agent_system.retrieval.service import RetrieveRequest
from agent_system.retrieval.threads import limit_threads
from rsipo.retriever.parent import end_with_parent
from rsipo.retriever.serve import KEEP_ALIVE_S, listen


def make_app(engine: Engine, threads: int) -> FastAPI:
    """The application. The handler is no coroutine, so FastAPI runs it on a pool of threads."""
    app = FastAPI()
    one_at_a_time = threading.Lock()  # tokenizers must not be shared by threads

    @app.get("/ready")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.post("/retrieve")
    def retrieve(request: RetrieveRequest) -> dict[str, Any]:
        result = []
        for query in request.texts:
            with one_at_a_time:
                limit_threads(threads)
                [hits] = engine.search([query], request.topk or 3)
            result.append([{"document": orjson.loads(hit.document), "score": hit.score} for hit in hits])
        return {"result": result}

    return app


def main(
    index: Path,
    port: Annotated[int, typer.Option()] = 0,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    address_file: Annotated[Path | None, typer.Option()] = None,
    with_parent: Annotated[bool, typer.Option("--with-parent")] = False,
) -> None:
    """Serve INDEX until SIGTERM."""
    if with_parent:
        end_with_parent()
    listener = listen("127.0.0.1", port)
    app = make_app(open_engine(index), threads)
    if address_file is not None:
        write_atomically(address_file, f"http://127.0.0.1:{listener.getsockname()[1]}")
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_keep_alive=KEEP_ALIVE_S)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    typer.run(main)
