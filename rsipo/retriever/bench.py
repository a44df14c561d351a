"""``rsipo retriever bench``: this service against the plain one-by-one server, on the same index and queries, in one run."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agent_system.files import write_atomically
from rsipo.problems import UserError
from rsipo.retriever.process import RetrieverProcess

_TOP_K = 3
_ROLLOUTS = 8
_TIMEOUT_S = 600.0
_TABLE_WIDTH = 112
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
"""Resolution of a process's CPU time; a load that takes less is counted as one tick."""
DESIGNS = {"one by one": ("rsipo.retriever.baseline",), "rsipo": ("rsipo.cli", "retriever", "serve")}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One workload on one server.

    Attributes:
        design, workload: which.
        requests: number of them, one query each.
        cpu_ms: processor time of the server per request.
        per_core: requests a second that one core serves.
        wall_s: of the whole workload; tells of the machine's other load, too.
        p50_ms, p99_ms: latency seen by the clients.
        searched: queries that reached the index.
        mean_batch: of these per search.
    """

    design: str
    workload: str
    requests: int
    cpu_ms: float
    per_core: float
    wall_s: float
    p50_ms: float
    p99_ms: float
    searched: int
    mean_batch: float


def bench_command(index: Path, queries: Path, *, clients: int, requests: int, threads: int, out: Path | None) -> None:
    """Run every workload on both servers and print the table.

    Raises:
        UserError: no queries; a server that does not start.
    """
    workloads = make_workloads(read_queries(queries), requests)
    options = ["--threads", str(threads)]
    found: list[Measurement] = []
    answers: dict[str, dict[str, list[str]]] = {}
    with Progress(transient=True) as progress:
        bar = progress.add_task("requests", total=len(DESIGNS) * sum(map(len, workloads.values())))
        for design, module in DESIGNS.items():
            seen = answers[design] = {}
            for workload, asked in workloads.items():  # a fresh server for each: no cache is warm
                with RetrieverProcess(index, options, module=module) as server:
                    load = Load(server, asked, clients, lambda: progress.advance(bar))
                    try:
                        found.append(load.measure(design, workload))
                    except httpx.HTTPError as error:
                        raise UserError(
                            f"the server {design!r} failed on {workload!r}: {error or type(error)}"
                        ) from error
                    seen |= load.answers
    _print(found, answers, clients=clients, threads=threads)
    if out is not None:
        write_atomically(out, json.dumps([asdict(measurement) for measurement in found], indent=1))


def read_queries(path: Path) -> list[str]:
    """The queries of a log: JSON lines with ``query``, also packed. Raises UserError without any."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            queries = [json.loads(line)["query"] for line in file]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f'{path} is no query log ({error}); it needs lines {{"query": "…"}}') from error
    if not queries:
        raise UserError(f"{path} holds no queries")
    return queries


def make_workloads(log: Sequence[str], requests: int) -> dict[str, list[str]]:
    """Requests by workload: each distinct query once; the log as it is; distinct queries asked by eight rollouts at once."""
    distinct = list(dict.fromkeys(log))
    random.Random(0).shuffle(distinct)
    groups = distinct[: max(1, requests // _ROLLOUTS)]
    return {
        "no repeats": distinct[:requests],
        "log": list(log[:requests]),
        f"{_ROLLOUTS} rollouts": [query for query in groups for _ in range(_ROLLOUTS)],
    }


class Load:
    """Clients that each send one query, wait for its answer, and send the next."""

    def __init__(
        self, server: RetrieverProcess, queries: Sequence[str], clients: int, tick: Callable[[], None]
    ) -> None:
        self._server = server
        self._queries = queries
        self._clients = clients
        self._tick = tick
        self.answers: dict[str, list[str]] = {}

    def measure(self, design: str, workload: str) -> Measurement:
        """Send everything and count."""
        process = psutil.Process(self._server.process.pid)
        before, start = process.cpu_times(), time.monotonic()
        latencies = asyncio.run(self._send())
        wall, after = time.monotonic() - start, process.cpu_times()
        cpu = max(_TICK_S, after.user + after.system - before.user - before.system)
        searched, batches = self._counts()
        return Measurement(
            design,
            workload,
            len(self._queries),
            cpu_ms=1000 * cpu / len(self._queries),
            per_core=len(self._queries) / cpu,
            wall_s=wall,
            p50_ms=1000 * statistics.median(latencies),
            p99_ms=1000 * sorted(latencies)[int(0.99 * len(latencies))],
            searched=searched,
            mean_batch=searched / batches,
        )

    async def _send(self) -> list[float]:
        limits = httpx.Limits(max_connections=self._clients, max_keepalive_connections=self._clients)
        latencies: list[float] = []
        queue = iter(self._queries)
        async with httpx.AsyncClient(limits=limits, timeout=_TIMEOUT_S, trust_env=False) as http:
            await asyncio.gather(*(self._client(http, queue, latencies) for _ in range(self._clients)))
        return latencies

    async def _client(self, http: httpx.AsyncClient, queue: Iterator[str], latencies: list[float]) -> None:
        for query in queue:
            start = time.monotonic()
            body = {"query": query, "topk": _TOP_K, "return_scores": True}
            response = await http.post(f"{self._server.url}/retrieve", json=body)
            latencies.append(time.monotonic() - start)
            response.raise_for_status()
            [hits] = response.json()["result"]
            self.answers[query] = [hit["document"]["id"] for hit in hits]
            self._tick()

    def _counts(self) -> tuple[int, int]:
        """Queries searched, and searches; the plain server has no counters: all, one by one."""
        response = httpx.get(f"{self._server.url}/metrics", timeout=_TIMEOUT_S, trust_env=False)
        if response.status_code != httpx.codes.OK:
            return len(self._queries), len(self._queries)
        lines = (line.rsplit(" ", 1) for line in response.text.splitlines() if not line.startswith("#"))
        values = {name: float(value) for name, value in lines}
        return int(values["retriever_batch_size_sum"]), int(values["retriever_batch_size_count"])


def _print(found: list[Measurement], answers: dict[str, dict[str, list[str]]], *, clients: int, threads: int) -> None:
    plain = {row.workload: row.per_core for row in found if row.design == "one by one"}
    table = Table(title=f"{clients} clients, {threads} thread(s)")
    for name in (
        "workload",
        "server",
        "requests",
        "searched",
        "batch",
        "CPU ms/req",
        "req/s/core",
        "×",
        "p50 ms",
        "p99 ms",
    ):
        table.add_column(name, justify="left" if name in ("workload", "server") else "right")
    for row in sorted(found, key=lambda row: list(plain).index(row.workload)):
        numbers = (row.mean_batch, row.cpu_ms, row.per_core, row.per_core / plain[row.workload], row.p50_ms, row.p99_ms)
        cells = [f"{number:,.1f}" if number < 1000 else f"{number:,.0f}" for number in numbers]
        table.add_row(row.workload, row.design, str(row.requests), str(row.searched), *cells)
    console = Console()
    console.width = max(console.width, _TABLE_WIDTH)  # a file has no width of its own
    console.print(table)
    one, other = answers.values()
    equal = sum(one[query] == other[query] for query in one)
    console.print(f"equal answers: {equal} of {len(one)} queries", highlight=False)
