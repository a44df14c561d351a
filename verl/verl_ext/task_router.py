"""Which rollout server a request goes to: those of one task to the same one, where the head of their prompts is cached."""

from __future__ import annotations

from collections import Counter
from typing import Any

from cachetools import LRUCache
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager
from verl.workers.rollout.router import DEFAULT_ROUTING_CACHE_SIZE, GlobalRequestLoadBalancer, get_router_handle


class TaskRouter(GlobalRequestLoadBalancer):
    """veRL's load balancer with a home server for every task: consistent placement with bounded load.

    A request is named ``group/kind/index``; the requests of one name (the turns of an episode) stay on one server, as
    in veRL. A new name goes to the server of its group, unless that one has more than ``slack`` requests more in flight
    than the least busy one: then to the least busy one, and the group keeps its home. A new group's home is the least
    busy server, of equally busy ones the one that has been home to the fewest groups.
    """

    slack = 8

    def __init__(self, servers: dict[str, Any], max_cache_size: int = DEFAULT_ROUTING_CACHE_SIZE):
        super().__init__(servers, max_cache_size)
        self._homes: LRUCache = LRUCache(maxsize=max_cache_size)
        self._groups: Counter[str] = Counter()  # per server, how many it has been made the home of

    def acquire_server(self, request_id: str) -> tuple[str, Any]:
        """(server id, server's actor) for a request. Raises RuntimeError without any server."""
        if self._request_id_to_server.get(request_id) not in self._inflight_requests and self._inflight_requests:
            self._request_id_to_server[request_id] = self._place(request_id.rsplit("/", 2)[0])
        return super().acquire_server(request_id)

    def clear_sticky_cache(self) -> dict:
        """As veRL's, and every task's home is forgotten."""
        self._homes.clear()
        return super().clear_sticky_cache()

    def _place(self, group: str) -> str:
        load = self._inflight_requests
        least_busy = min(load, key=lambda server: (load[server], self._groups[server]))
        home = self._homes.get(group)
        if home not in load:
            home = self._homes[group] = least_busy
            self._groups[home] += 1
        return least_busy if load[home] - load[least_busy] > self.slack else home


def task_router(slack: int) -> type[TaskRouter]:
    """The router with this ``slack`` (requests); veRL's factory takes a class and gives it no settings."""
    return type("TaskRouter", (TaskRouter,), {"slack": slack})


def client_with_router(servers: LLMServerManager, slack: int | None) -> LLMServerClient:
    """A client of running servers with a router of its own, to compare routings; ``slack`` None: veRL's, by load."""
    by_address = dict(zip(servers.server_addresses, servers.server_handles, strict=True))
    router = get_router_handle(by_address, load_balancer_cls=None if slack is None else task_router(slack))
    return LLMServerClient(servers.config, router)
