"""What training relies on of veRL's vLLM servers, checked on real ones: weights, caches, sampling, aborts, versions."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.vllm_cpu

SAME = 1e-5
DIFFERENT = 1e-2
BLOCK = 32
"""Tokens in a block of the prefix cache (``block_size`` of the profile)."""
LONG = 100
"""Tokens of a prompt of which many are sent at once; no divisor of what a server takes in one pass."""
TASKS, MEMBERS = 4, 4
HEAD, TAIL = 128, 40
"""Tokens that the prompts of a task share (whole blocks of the prefix cache), and that each has for itself."""


def test_log_probs_equal_the_actors_after_every_sync(lane: Any, cached_tokens: Any) -> None:
    """Servers start with random weights, so the first sync alone must have delivered every one, in several buckets."""
    outputs = lane.generate(tag="parity")
    assert cached_tokens(outputs) == 0
    assert {output.extra_fields["global_steps"] for output in outputs} == {lane.version}
    assert lane.gap(outputs) < SAME
    for _ in range(2):
        lane.update(outputs)
        lane.sync()
        outputs = lane.generate(tag="parity")
        assert cached_tokens(outputs) == 0, "the prefix cache outlived a sync"
        assert {output.extra_fields["global_steps"] for output in outputs} == {lane.version}
        again = lane.generate(tag="parity")
        assert cached_tokens(again) > 0
        assert max(lane.gap(outputs), lane.gap(again)) < SAME


def test_stale_weights_would_be_noticed(lane: Any) -> None:
    """Control: what the parity check says when a sync is left out."""
    lane.update(lane.generate())
    lane.wake_without_sync()
    stale = lane.generate()
    assert lane.gap(stale) > DIFFERENT
    lane.sync()
    assert lane.gap(lane.generate()) < SAME


def test_a_stale_prefix_cache_would_be_noticed(lane: Any, cached_tokens: Any) -> None:
    """Control: what the parity check says when the servers keep their cache over a sync."""

    async def kept(*_: Any, **__: Any) -> bool:
        return True

    def keep_cache(server: Any) -> None:
        server.engine.reset_prefix_cache = kept

    def reset_cache(server: Any) -> None:
        del server.engine.reset_prefix_cache

    outputs = lane.generate(tag="stale")
    lane.on_servers(keep_cache)
    lane.update_awake(outputs)
    stale = lane.generate(tag="stale")
    lane.on_servers(reset_cache)
    assert cached_tokens(stale) > 0
    assert lane.gap(stale) > DIFFERENT
    lane.sync()
    assert lane.gap(lane.generate(tag="stale")) < SAME


def test_every_server_has_the_same_weights(lane: Any) -> None:
    settings = {"temperature": 0.0, "max_tokens": 16, "logprobs": True}
    answers = lane.from_each_server(lane.prompts[0], settings)
    assert len(answers) == lane.servers
    assert len({tuple(answer.token_ids) for answer in answers}) == 1


def test_the_second_turn_is_read_from_the_cache(lane: Any, cached_tokens: Any) -> None:
    first = lane.generate(tag="turns")
    prompts = [
        np.concatenate([prompt, np.array(output.token_ids, np.int32), [7, 8, 9]]).astype(np.int32)
        for prompt, output in zip(lane.prompts, first, strict=True)
    ]
    second = lane.generate(prompts, tag="turns")
    # Whole blocks of the first turn; its last token was sampled but never computed.
    whole_blocks = sum((len(prompt) - 4) // BLOCK * BLOCK for prompt in prompts)
    assert cached_tokens(second) == whole_blocks > 0.6 * sum(map(len, prompts))
    assert lane.gap(second, prompts) < SAME


def test_sampling_is_set_per_request(lane: Any) -> None:
    def tokens(outputs: list[Any]) -> list[list[int]]:
        return [list(output.token_ids) for output in outputs]

    greedy = tokens(lane.generate(temperature=0.0))
    assert greedy == tokens(lane.generate(temperature=0.0))
    seeded = tokens(lane.generate(seed=1))
    assert seeded == tokens(lane.generate(seed=1)) != tokens(lane.generate(seed=2))
    assert {len(ids) for ids in tokens(lane.generate(max_tokens=5, ignore_eos=True))} == {5}
    cool = lane.generate(temperature=0.5)
    assert lane.gap(cool, temperature=0.5) < 2 * SAME  # logits, and with them their errors, are twice as large


def test_more_prompts_at_once_than_a_server_takes_in_one_pass(lane: Any) -> None:
    """Requests have seeds, and vLLM's CPU engine ends on a seeded one whose prompt it takes in two parts."""
    rng = np.random.default_rng(0)
    count = 2 * lane.servers * lane.cluster.config.actor_rollout_ref.rollout.max_num_batched_tokens // LONG
    prompts = [rng.integers(5, 900, LONG).astype(np.int32) for _ in range(count)]
    outputs = lane.generate(prompts, max_tokens=8, seed=1)
    assert len(outputs) == count
    assert lane.gap(outputs, prompts) < SAME


def test_a_response_ends_with_the_turn(lane: Any) -> None:
    """A random policy hardly ever ends its turn, so it is pushed to."""
    end = lane.end_of_turn
    outputs = lane.generate(max_tokens=200, logit_bias={end: 4.0})
    ended = [output.token_ids for output in outputs if len(output.token_ids) < 200]
    assert ended
    assert all(tokens[-1] == end for tokens in ended)
    assert all(end not in output.token_ids[:-1] for output in outputs)


def test_requests_are_aborted_and_serving_goes_on(lane: Any) -> None:
    replicas = lane.cluster._servers.get_replicas()
    client = lane.cluster.client()
    settings = {"temperature": 1.0, "max_tokens": 2000, "logprobs": True, "ignore_eos": True}

    async def abort() -> tuple[int, list[Any]]:
        calls = [
            asyncio.create_task(client.generate(f"abort{i}", prompt_ids=p.tolist(), sampling_params=dict(settings)))
            for i, p in enumerate(lane.prompts)
        ]
        while sum(lane.on_servers(lambda server: len(server.engine.output_processor.request_states))) < len(calls):
            await asyncio.sleep(0.05)
        results = [await replica.abort_all_requests() for replica in replicas]
        outputs = await asyncio.gather(*calls)
        for replica in replicas:
            await replica.resume_generation()
        return sum(result["aborted_count"] for result in results), outputs

    count, outputs = asyncio.run(asyncio.wait_for(abort(), 120))
    assert count == len(lane.prompts)
    assert {output.stop_reason for output in outputs} == {"aborted"}
    assert lane.gap(lane.generate()) < SAME


def _play_groups(client: Any, seed: int) -> list[Any]:
    """One request of every task, then the others of all tasks at once; the outputs of the others."""
    rng = np.random.default_rng(seed)

    def tokens(count: int) -> list[int]:
        return rng.integers(5, 900, count).tolist()

    prompts = {}
    for task in range(TASKS):
        head = tokens(HEAD)
        prompts |= {f"{seed}/games/{task}/student/{member}": head + tokens(TAIL) for member in range(MEMBERS)}

    async def answers(names: list[str]) -> list[Any]:
        settings = {"temperature": 1.0, "max_tokens": 8, "logprobs": True}
        calls = [client.generate(name, prompt_ids=prompts[name], sampling_params=dict(settings)) for name in names]
        return await asyncio.wait_for(asyncio.gather(*calls), 120)

    async def run() -> list[Any]:
        await answers([name for name in prompts if name.endswith("/0")])
        return await answers([name for name in prompts if not name.endswith("/0")])

    return asyncio.run(run())


def test_a_tasks_prompts_find_their_head_in_one_servers_cache(lane: Any, cached_tokens: Any) -> None:
    """By load, as veRL's own balancer places them, about half of them miss it where there are two servers."""
    from verl_ext.task_router import client_with_router

    whole = TASKS * (MEMBERS - 1) * HEAD
    assert cached_tokens(_play_groups(lane.cluster.client(), seed=1)) == whole
    by_load = cached_tokens(_play_groups(client_with_router(lane.cluster._servers, slack=None), seed=2))
    assert by_load < whole if lane.servers > 1 else by_load == whole


def test_a_task_with_too_many_requests_is_served_by_all_servers(lane: Any) -> None:
    """With no slack, each server gets some of the task's requests and has computed its head."""
    from verl_ext.task_router import client_with_router

    client = client_with_router(lane.cluster._servers, slack=0)
    head = np.random.default_rng(3).integers(5, 900, HEAD)

    async def burst() -> None:
        settings = {"temperature": 1.0, "max_tokens": 200, "logprobs": True, "ignore_eos": True}
        calls = [
            client.generate(f"3/hot/student/{i}", prompt_ids=[*head.tolist(), 5 + i], sampling_params=dict(settings))
            for i in range(MEMBERS)
        ]
        await asyncio.wait_for(asyncio.gather(*calls), 120)

    asyncio.run(burst())
    answers = lane.from_each_server(np.append(head, 99), {"temperature": 0.0, "max_tokens": 1, "logprobs": True})
    assert [answer.extra_fields["num_cached_tokens"] for answer in answers] == [HEAD] * lane.servers
