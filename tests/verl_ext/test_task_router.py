"""Placement of requests on rollout servers; strings stand for the servers' actors, which the router only hands on."""

from __future__ import annotations

import pytest

from verl_ext.task_router import TaskRouter, task_router


def router(servers: int, slack: int = 8) -> TaskRouter:
    return task_router(slack)({f"s{index}": f"actor{index}" for index in range(servers)})


def test_a_tasks_requests_share_a_server_and_tasks_spread() -> None:
    balancer = router(2)
    names = ["student/0", "student/7", "skill/0", "rewrite/0", "replay/3"]
    first = {balancer.acquire_server(f"1/games/a/{name}") for name in names}
    second = {balancer.acquire_server(f"1/games/b/{name}") for name in names}
    assert (first, second) == ({("s0", "actor0")}, {("s1", "actor1")})


def test_tasks_spread_also_where_no_request_is_in_flight() -> None:
    balancer = router(3)
    placed = []
    for task in range(6):
        server, _ = balancer.acquire_server(f"1/{task}/student/0")
        balancer.release_server(server)
        placed.append(server)
    assert sorted(placed) == ["s0", "s0", "s1", "s1", "s2", "s2"]


def test_a_hot_task_overflows_to_the_least_busy_server_and_keeps_its_home() -> None:
    balancer = router(2, slack=2)
    placed = [balancer.acquire_server(f"1/hot/student/{index}")[0] for index in range(6)]
    assert placed == ["s0", "s0", "s0", "s1", "s0", "s1"]
    for server in placed:
        balancer.release_server(server)
    assert balancer.acquire_server("1/hot/replay/0")[0] == "s0"


def test_an_episodes_turns_stay_also_where_their_server_is_busy() -> None:
    balancer = router(2, slack=0)
    first = balancer.acquire_server("1/a/student/0")[0]
    balancer.acquire_server("1/a/student/0")
    assert {balancer.acquire_server("1/a/student/0")[0] for _ in range(5)} == {first}
    assert balancer.acquire_server("1/a/student/1")[0] != first


def test_one_server_gets_everything() -> None:
    balancer = router(1, slack=0)
    assert {balancer.acquire_server(f"1/{task}/student/0")[0] for task in range(20)} == {"s0"}
    assert balancer.get_total_inflight() == 20


def test_a_removed_server_is_left_and_forgotten_homes_are_chosen_anew() -> None:
    balancer = router(2)
    assert balancer.acquire_server("1/a/student/0")[0] == "s0"
    balancer.remove_servers(["s0"])
    assert balancer.acquire_server("1/a/student/0")[0] == balancer.acquire_server("1/a/student/1")[0] == "s1"
    balancer.add_servers({"s2": "actor2"})
    balancer.clear_sticky_cache()
    assert balancer.acquire_server("1/a/student/2")[0] == "s2"
    balancer.remove_servers(["s1", "s2"])
    with pytest.raises(RuntimeError, match="No available servers"):
        balancer.acquire_server("1/a/student/2")
