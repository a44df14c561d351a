"""The CPU rollout server in this process, without Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from verl.utils.config import omega_conf_to_dataclass

from verl_ext.generation import GenerationError
from verl_ext.rollout_server import CPURolloutServer
from verl_ext.verl_config import load_verl_config


def make_server(model: Path, **settings: Any) -> CPURolloutServer:
    settings = {"name": "cpu", "dtype": "float32", "load_format": "auto", "max_num_seqs": 4, **settings}
    config = load_verl_config(
        [
            f"actor_rollout_ref.model.path={model}",
            "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
            *(f"++actor_rollout_ref.rollout.{name}={value}" for name, value in settings.items()),
        ]
    ).actor_rollout_ref
    return CPURolloutServer(omega_conf_to_dataclass(config.rollout), config.model)


def generate(server: CPURolloutServer, *requests: tuple[str, dict[str, Any]]) -> list[Any]:
    async def run() -> list[Any]:
        return await asyncio.gather(*(server.generate([7, 8, 9], params, name) for name, params in requests))

    return asyncio.run(run())


def test_weights_from_disk_have_version_minus_one(tiny_model: Path) -> None:
    (output,) = generate(make_server(tiny_model), ("a", {"max_tokens": 4}))
    assert output.extra_fields == {"global_steps": -1}
    assert 1 <= len(output.token_ids) == len(output.log_probs) <= 4


def test_configured_lengths_bound_a_response_without_max_tokens(tiny_model: Path) -> None:
    server = make_server(tiny_model, prompt_length=10, response_length=6, ignore_eos=True)
    assert [len(output.token_ids) for output in generate(server, ("a", {}), ("b", {"max_tokens": 9}))] == [6, 9]


def test_without_weights_it_refuses(tiny_model: Path) -> None:
    with pytest.raises(GenerationError, match="no weights yet"):
        generate(make_server(tiny_model, load_format="dummy"), ("a", {}))


def test_full_determinism_seeds_by_request_id(tiny_model: Path) -> None:
    params = {"max_tokens": 12, "ignore_eos": True}
    runs = [
        [o.token_ids for o in generate(make_server(tiny_model, full_determinism=True), ("a", params), ("b", params))]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


def test_abort_request_ends_that_one_only(tiny_model: Path) -> None:
    server = make_server(tiny_model)
    params = {"max_tokens": 450, "ignore_eos": True}

    async def run() -> tuple[Any, ...]:
        calls = [asyncio.create_task(server.generate([7], dict(params), name)) for name in "ab"]
        await asyncio.sleep(0)
        return await server.abort_request("a"), *[await call for call in calls], await server.abort_request("a")

    aborted, first, second, again = asyncio.run(run())
    assert aborted["aborted"]
    assert (first.stop_reason, second.stop_reason) == ("aborted", "length")
    assert len(first.token_ids) < len(second.token_ids) == 450
    assert not again["aborted"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "float16"}, "rollout.dtype is float16"),
        ({"max_model_len": 4096}, "rollout.max_model_len is 4096, but the model's context is 512"),
    ],
)
def test_settings_that_cannot_work(tiny_model: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_server(tiny_model, **settings)
