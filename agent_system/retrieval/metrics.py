"""What ``/metrics`` tells, in Prometheus' text form."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class Metrics:
    """The instruments of one service, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("retriever_requests", "Requests by HTTP status.", ["status"], registry=registry)
        self.queries = Counter(
            "retriever_queries",
            "Queries by where the answer came from: cache, coalesced, index.",
            ["source"],
            registry=registry,
        )
        self.expired = Counter(
            "retriever_expired", "Queries dropped because nobody waited any more.", registry=registry
        )
        self.waiting = Gauge("retriever_waiting", "Distinct queries that wait for a batch.", registry=registry)
        self.cached = Gauge("retriever_cached", "Answers in the cache.", registry=registry)
        self.batch_size = Histogram(
            "retriever_batch_size", "Queries per batch.", buckets=_BATCH_SIZES, registry=registry
        )
        self.batch_seconds = Histogram(
            "retriever_batch_seconds", "Encoding and searching one batch.", buckets=_SECONDS, registry=registry
        )
        self.request_seconds = Histogram(
            "retriever_request_seconds", "A request, waiting included.", buckets=_SECONDS, registry=registry
        )
        self.ready = Gauge("retriever_ready", "1 when the index has been tried and answers.", registry=registry)
