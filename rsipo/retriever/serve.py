"""``rsipo retriever serve``: the service in a process of its own, and that process as seen by another one."""

from __future__ import annotations

import logging
import signal
import socket
from pathlib import Path

import uvicorn

from agent_system.files import write_atomically
from agent_system.retrieval.encoders import Precision
from agent_system.retrieval.engine import open_engine
from agent_system.retrieval.service import RetrieverService, ServiceSettings
from agent_system.retrieval.threads import limit_threads
from agent_system.retrieval.types import IndexProblem
from rsipo.problems import UserError

_DRAIN_S = 30  # for requests in progress when the process is asked to end
KEEP_ALIVE_S = 120  # longer than clients keep idle connections: a client must not write on one that is being closed


def serve(
    index: Path,
    settings: ServiceSettings,
    *,
    host: str,
    port: int,
    encoder: Path | None = None,
    precision: Precision = "float32",
    every_byte: bool = False,
    address_file: Path | None = None,
) -> None:
    """Serves an index folder until SIGTERM or Ctrl-C; requests in progress are answered first.

    Args:
        index: made by ``rsipo retriever build``.
        settings: of the service.
        host, port: where to listen; port 0 takes a free one.
        encoder, precision, every_byte: see ``open_engine``.
        address_file: gets the service's URL once the port is open.

    Raises:
        UserError: index, corpus and encoder do not fit; the port is taken.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s retriever: %(message)s", datefmt="%H:%M:%S")
    log = logging.getLogger("rsipo.retriever")
    limit_threads(settings.threads)
    log.info("opening %s", index)
    try:
        engine = open_engine(index, encoder=encoder, precision=precision, every_byte=every_byte)
    except IndexProblem as error:
        raise UserError(str(error)) from error
    listener = listen(host, port)
    url = f"http://{host}:{listener.getsockname()[1]}"
    log.info("%s serves index %s with %d thread(s)", url, engine.fingerprint[:16], settings.threads)

    service = RetrieverService(engine, settings, on_failure=lambda: setattr(server, "should_exit", True))
    config = uvicorn.Config(
        service.app,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=_DRAIN_S,
    )
    server = uvicorn.Server(config)
    if address_file is not None:
        write_atomically(address_file, url)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises them once more when it has drained
    server.run(sockets=[listener])
    if service.failure is not None:
        raise UserError(str(service.failure)) from service.failure
    log.info("stopped")


def listen(host: str, port: int) -> socket.socket:
    """An open port. Raises UserError when it is taken."""
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except OSError as error:
        raise UserError(
            f"cannot listen on {host} port {port} ({error.strerror}); stop what listens there, or choose another --port"
        ) from error
