from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest
from ray.exceptions import ActorDiedError

from agent_system.rollout.policy import Policy, PolicyFault
from agent_system.rollout.scripted import ScriptedOutput, ScriptedPolicy
from agent_system.rollout.types import Sampling

PROMPT = np.asarray([1, 5, 9], dtype=np.int32)


class Server:
    """A client that gives the listed outputs, or raises them, one after another; the last one for ever."""

    def __init__(self, *outputs):
        self.outputs, self.requests = list(outputs), []

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        self.requests.append((request_id, list(prompt_ids), dict(sampling_params)))
        output = self.outputs.pop(0) if len(self.outputs) > 1 else self.outputs[0]
        if isinstance(output, BaseException):
            raise output
        return output


def ask(prompter, *outputs, max_tokens=8):
    server = Server(*outputs)
    policy = Policy(server, prompter, attempts=3, backoff_s=0.0)
    return server, asyncio.run(policy.generate(PROMPT, Sampling(1.0, max_tokens, seed=3), "1/task/student/0"))


def test_token_ids_and_log_probs_pass_through_untouched(prompter):
    # Ids that no tokenizer would produce for their own text: the same letters merged and unmerged.
    ids = [*prompter.tokenizer.convert_tokens_to_ids(list("mug")), prompter.tokenizer.eos_token_id]
    assert prompter.tokenizer.encode("mug") != ids[:-1]
    server, generation = ask(prompter, ScriptedOutput(ids, [-0.1, -0.2, -0.3, -0.4], extra_fields={"global_steps": 5}))
    assert generation.response_ids.tolist() == ids
    assert generation.log_probs.tolist() == pytest.approx([-0.1, -0.2, -0.3, -0.4])
    assert generation.prompt_ids is PROMPT
    assert (generation.text, generation.finished, generation.weights_version) == ("mug", True, 5)
    assert server.requests == [
        ("1/task/student/0", [1, 5, 9], {"temperature": 1.0, "max_tokens": 8, "logprobs": True, "seed": 3})
    ]


@pytest.mark.parametrize("stop_reason", ["completed", "length", None])
def test_a_response_cut_by_the_token_limit_is_not_finished(prompter, stop_reason):
    ids = prompter.tokenizer.encode("a response that goes on and on")[:8]
    _, generation = ask(prompter, ScriptedOutput(ids, [-1.0] * len(ids), stop_reason))
    assert not generation.finished


def test_an_end_of_turn_at_the_very_limit_is_finished(prompter):
    ids = [*prompter.tokenizer.encode("a response that goes on and on")[:7], prompter.tokenizer.eos_token_id]
    _, generation = ask(prompter, ScriptedOutput(ids, [-1.0] * 8))
    assert generation.finished


@pytest.mark.parametrize(
    "loss",
    [ConnectionResetError("gone"), ActorDiedError(), ScriptedOutput([7], [-1.0], "aborted"), ScriptedOutput([], [])],
    ids=["connection", "actor", "aborted", "empty"],
)
def test_lost_requests_are_tried_again_with_the_same_seed(prompter, loss):
    server, generation = ask(prompter, loss, loss, ScriptedOutput([2], [-1.0]))
    assert generation.response_ids.tolist() == [2]
    assert len(server.requests) == 3
    assert all(request == server.requests[0] for request in server.requests)


def test_retries_are_bounded(prompter):
    with pytest.raises(PolicyFault, match=r"3 attempts \(ConnectionRefusedError: no server\)"):
        ask(prompter, ConnectionRefusedError("no server"))


def test_programming_errors_are_not_retried(prompter):
    with pytest.raises(KeyError):
        ask(prompter, KeyError("oops"), ScriptedOutput([2], [-1.0]))


def test_missing_log_probs_are_an_error(prompter):
    with pytest.raises(ValueError, match="logprobs"):
        ask(prompter, ScriptedOutput([5, 2], None))


def test_the_scripted_policy_cuts_at_the_limit_as_a_server_does(prompter):
    client = ScriptedPolicy(prompter, lambda request: "go to desk 1 and take the mug")
    policy = Policy(client, prompter)
    cut = asyncio.run(policy.generate(PROMPT, Sampling(0.0, 4), "r"))
    whole = asyncio.run(policy.generate(PROMPT, dataclasses.replace(Sampling(0.0, 64)), "r"))
    assert (len(cut.response_ids), cut.finished) == (4, False)
    assert (whole.text, whole.finished) == ("go to desk 1 and take the mug", True)
