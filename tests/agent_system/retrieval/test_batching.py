"""What happens to queries between HTTP and the engine."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agent_system.retrieval.batching import Batcher
from agent_system.retrieval.metrics import Metrics
from agent_system.retrieval.types import RetrievalTimeout, RetrieverOverloaded


@pytest.fixture
def run(held_engine):
    """Runs ``program(batcher, engine)`` with a started batcher."""

    def runner(program, **options):
        async def body():
            batcher = Batcher(held_engine, Metrics(), **options)
            batcher.start()
            try:
                return await program(batcher, held_engine)
            finally:
                held_engine.go.set()
                await batcher.stop()

        return asyncio.run(asyncio.wait_for(body(), 60))

    return runner


async def _started(engine) -> None:
    """Until the engine has begun with a batch."""
    assert await asyncio.to_thread(engine.started.acquire, timeout=60)


async def _ask(batcher, *queries, top_k=1, timeout_s=60.0):
    answers = await batcher.search(list(queries), top_k, timeout_s)
    return [[hit.document.decode().rsplit("\\n", 1)[1][:-2] for hit in answer] for answer in answers]


def test_equal_queries_in_flight_are_searched_once_and_then_remembered(run):
    async def program(batcher, engine):
        tasks = [asyncio.create_task(_ask(batcher, "red  fox", f"own {n}")) for n in range(8)]
        await _started(engine)
        tasks.append(asyncio.create_task(_ask(batcher, " red fox\n")))
        await asyncio.sleep(0)
        engine.go.set()
        answers = await asyncio.gather(*tasks)
        assert answers == [*([["red fox"], [f"own {n}"]] for n in range(8)), [["red fox"]]]
        assert await _ask(batcher, "red fox", "red fox") == [["red fox"]] * 2
        searched = [query for batch in engine.batches for query in batch]
        assert sorted(searched) == sorted(["red fox", *(f"own {n}" for n in range(8))])

    run(program)


def test_batches_form_while_the_engine_works(run):
    async def program(batcher, engine):
        first = asyncio.create_task(_ask(batcher, "first"))
        await _started(engine)
        rest = [asyncio.create_task(_ask(batcher, f"q{n}")) for n in range(10)]
        await asyncio.sleep(0)
        engine.go.set()
        await asyncio.gather(first, *rest)
        assert [len(batch) for batch in engine.batches] == [1, 4, 4, 2]

    run(program, max_batch=4, window_s=0)


def test_empty_queries_need_no_search(run):
    async def program(batcher, engine):
        assert await _ask(batcher, "", " \n") == [[], []]
        assert await _ask(batcher) == []
        assert engine.batches == []

    run(program)


def test_another_number_of_passages_is_another_answer(run):
    async def program(batcher, engine):
        engine.go.set()
        one, three = await asyncio.gather(_ask(batcher, "a", top_k=1), _ask(batcher, "a", top_k=3))
        assert (len(one[0]), len(three[0])) == (1, 3)

    run(program)


def test_a_full_queue_refuses_a_request_as_a_whole(run):
    async def program(batcher, engine):
        first = asyncio.create_task(_ask(batcher, "first"))
        await _started(engine)
        second = asyncio.create_task(_ask(batcher, "b", "c"))
        await asyncio.sleep(0)
        with pytest.raises(RetrieverOverloaded) as refusal:
            await _ask(batcher, "d", "e")
        assert refusal.value.retry_after >= 1
        joined = asyncio.create_task(_ask(batcher, "b", "c", "first"))  # takes no place
        await asyncio.sleep(0)
        engine.go.set()
        await asyncio.gather(first, second, joined)
        assert await _ask(batcher, "d") == [["d"]]
        assert "e" not in [query for batch in engine.batches for query in batch]

    run(program, max_waiting=3, window_s=0)


def test_queries_nobody_waits_for_any_more_are_dropped(run):
    async def program(batcher, engine):
        first = asyncio.create_task(_ask(batcher, "first"))
        await _started(engine)
        patient = asyncio.create_task(_ask(batcher, "joined"))
        with pytest.raises(RetrievalTimeout):
            await _ask(batcher, "joined", "lonely", timeout_s=0.05)
        engine.go.set()
        assert await patient == [["joined"]]
        await first
        assert engine.batches == [["first"], ["joined"]]
        assert await _ask(batcher, "lonely") == [["lonely"]]

    run(program, window_s=0)


def test_a_failing_search_concerns_its_batch_alone(run):
    async def program(batcher, engine):
        engine.go.set()
        with pytest.raises(FloatingPointError):
            await _ask(batcher, "fail")
        assert await _ask(batcher, "fine") == [["fine"]]
        with pytest.raises(FloatingPointError):  # a failure is not remembered
            await _ask(batcher, "fail")
        assert engine.batches == [["fail"], ["fine"], ["fail"]]

    run(program)


def test_the_cache_is_bounded(run):
    async def program(batcher, engine):
        engine.go.set()
        for query in ("a", "b", "a", "c", "a", "b"):
            await _ask(batcher, query)
        assert engine.batches == [["a"], ["b"], ["c"], ["b"]]

    run(program, cache_size=2)


def test_stopping_tells_those_who_wait(run):
    async def program(batcher, engine):
        first = asyncio.create_task(_ask(batcher, "first"))
        await _started(engine)
        second = asyncio.create_task(_ask(batcher, "second"))
        await asyncio.sleep(0)
        threading.Timer(0.1, engine.go.set).start()
        await batcher.stop()
        for task in (first, second):
            with pytest.raises(RetrieverOverloaded):
                await task

    run(program)
