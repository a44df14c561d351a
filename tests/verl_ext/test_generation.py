"""Continuous batching against Hugging Face's own generation and plain forward passes."""

from __future__ import annotations

import random
from concurrent.futures import Future

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from verl_ext.generation import Completion, ContinuousBatcher, GenerationError
from verl_ext.generation_thread import GenerationThread
from verl_ext.sampling import SamplingError, SamplingSettings
from verl_ext.weights import WeightStage, WeightUpdateError

VOCABULARY = 97
CONTEXT = 160
EOS = 5
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def make_qwen2(seed: int = 0, **changes) -> PreTrainedModel:
    torch.manual_seed(seed)
    settings = {**SIZES, "num_key_value_heads": 2, "tie_word_embeddings": True, "initializer_range": 0.2, **changes}
    config = Qwen2Config(vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, **settings)
    return Qwen2ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return make_qwen2()


def make_batcher(model: PreTrainedModel, **settings) -> ContinuousBatcher:
    return ContinuousBatcher(model, settings.pop("eos_ids", [EOS]), context_length=CONTEXT, **settings)


def run(batcher: ContinuousBatcher) -> None:
    while batcher.num_running or batcher.num_waiting:
        batcher.step()


def submit(batcher: ContinuousBatcher, prompt: list[int], **settings) -> Future[Completion]:
    return batcher.submit(batcher.make_request(prompt, SamplingSettings(**settings)))


def generate(batcher: ContinuousBatcher, requests: list[tuple[list[int], dict]]) -> list[Completion]:
    futures = [submit(batcher, prompt, **settings) for prompt, settings in requests]
    run(batcher)
    return [future.result(0) for future in futures]


def replace_weights(stage: WeightStage, state: dict[str, torch.Tensor]) -> None:
    stage.add("a", state)
    stage.commit("a")


def ragged_requests(count: int, seed: int = 0) -> list[tuple[list[int], dict]]:
    """Prompts of 1 to 70 tokens with settings of every kind."""
    rng = random.Random(seed)
    return [
        (
            [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 70))],
            {
                "max_tokens": rng.randint(1, 40),
                "temperature": rng.choice([0.0, 0.5, 1.0, 1.3]),
                "top_p": rng.choice([1.0, 0.8]),
                "top_k": rng.choice([0, 10]),
                "seed": index,
            },
        )
        for index in range(count)
    ]


def forward_log_probs(
    model: PreTrainedModel, prompt: list[int], response: list[int], temperature: float
) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1].float()
    return (logits / (temperature or 1.0)).log_softmax(-1).gather(1, torch.tensor(response).unsqueeze(1)).squeeze(1)


def largest_error(model: PreTrainedModel, requests: list[tuple[list[int], dict]], done: list[Completion]) -> float:
    return max(
        float((torch.tensor(c.log_probs) - forward_log_probs(model, p, c.token_ids, s["temperature"])).abs().max())
        for (p, s), c in zip(requests, done, strict=True)
    )


def test_greedy_equals_hugging_face(model):
    prompts = [prompt for prompt, _ in ragged_requests(12)]
    done = generate(make_batcher(model, max_rows=5), [(p, {"temperature": 0.0, "max_tokens": 30}) for p in prompts])
    for prompt, completion in zip(prompts, done, strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=30,
            eos_token_id=EOS,
            pad_token_id=0,
        )
        assert completion.token_ids == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("max_rows", [1, 4, 64])
def test_log_probs_equal_a_plain_forward_pass(model, max_rows):
    requests = ragged_requests(30)
    done = generate(make_batcher(model, max_rows=max_rows, max_prefill_tokens=150), requests)
    assert largest_error(model, requests, done) < 1e-5


def make_mistral() -> PreTrainedModel:
    config = MistralConfig(
        vocab_size=VOCABULARY, num_key_value_heads=2, sliding_window=16, max_position_embeddings=CONTEXT, **SIZES
    )
    return MistralForCausalLM(config)


def make_gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4))


@pytest.mark.parametrize(
    "make",
    [make_mistral, make_gpt2, lambda: make_qwen2(attn_implementation="eager")],
    ids=["sliding window", "learned positions", "eager attention"],
)
def test_other_architectures(make):
    torch.manual_seed(0)
    other = make().eval()
    requests = ragged_requests(10)
    done = generate(make_batcher(other, max_rows=4), requests)
    assert largest_error(other, requests, done) < 1e-5


def test_bfloat16(model):
    half = make_qwen2().to(torch.bfloat16)
    requests = ragged_requests(10)
    done = generate(make_batcher(half, max_rows=4), requests)
    assert largest_error(model, requests, done) < 0.3
    assert largest_error(half, requests, done) < 0.3


def test_a_request_does_not_depend_on_its_company(model):
    requests = ragged_requests(25)
    together = generate(make_batcher(model, max_rows=8), requests)
    backwards = generate(make_batcher(model, max_rows=3), requests[::-1])[::-1]
    alone = [generate(make_batcher(model), [request])[0] for request in requests]
    for a, b, c in zip(together, backwards, alone, strict=True):
        assert a.token_ids == b.token_ids == c.token_ids
        assert a.log_probs == pytest.approx(c.log_probs, abs=1e-5)


def test_seeds(model):
    prompt, batcher = [1, 2, 3], make_batcher(model, eos_ids=[])
    seeded = generate(
        batcher, [(prompt, {"max_tokens": 20, "seed": 7})] * 2 + [(prompt, {"max_tokens": 20, "seed": 8})]
    )
    assert seeded[0].token_ids == seeded[1].token_ids != seeded[2].token_ids
    free = generate(batcher, [(prompt, {"max_tokens": 20})] * 2)
    assert free[0].token_ids != free[1].token_ids


def test_tokens_follow_the_distribution(model):
    prompt, count = [9, 8, 7], 4000
    requests = [(prompt, {"max_tokens": 1, "temperature": 0.7, "seed": seed}) for seed in range(count)]
    drawn = [c.token_ids[0] for c in generate(make_batcher(model, max_rows=1000), requests)]
    with torch.no_grad():
        expected = (model(torch.tensor([prompt])).logits[0, -1] / 0.7).softmax(-1)
    observed = torch.bincount(torch.tensor(drawn), minlength=VOCABULARY) / count
    assert (observed - expected).abs().max() < 5 * 0.5 / count**0.5
    assert set(drawn) != {int(expected.argmax())}


def test_top_k_and_top_p_keep_the_most_likely(model):
    prompt, batcher = [4, 4, 2], make_batcher(model)
    with torch.no_grad():
        probs, order = model(torch.tensor([prompt])).logits[0, -1].softmax(-1).sort(descending=True)
    nucleus = int((probs.cumsum(0) < 0.6).sum()) + 1
    seeds = range(300)
    by_k = generate(batcher, [(prompt, {"max_tokens": 1, "top_k": 3, "seed": seed}) for seed in seeds])
    by_p = generate(batcher, [(prompt, {"max_tokens": 1, "top_p": 0.6, "seed": seed}) for seed in seeds])
    assert {c.token_ids[0] for c in by_k} == set(order[:3].tolist())
    assert {c.token_ids[0] for c in by_p} <= set(order[:nucleus].tolist())


def test_stop_reasons(model):
    prompt = [3, 1, 4]
    free = generate(make_batcher(model, eos_ids=[]), [(prompt, {"max_tokens": 30, "temperature": 0.0})])[0]
    assert free.stop_reason == "length"
    assert len(free.token_ids) == 30
    stop = free.token_ids[4]
    cut = free.token_ids[: free.token_ids.index(stop) + 1]
    greedy = {"max_tokens": 30, "temperature": 0.0}
    ended, ignoring = generate(
        make_batcher(model, eos_ids=[VOCABULARY - 1, stop]),
        [(prompt, greedy), (prompt, {**greedy, "ignore_eos": True})],
    )
    assert (ended.token_ids, ended.stop_reason) == (cut, "completed")
    assert (ignoring.token_ids, ignoring.stop_reason) == (free.token_ids, "length")
    asked = generate(make_batcher(model, eos_ids=[]), [(prompt, {**greedy, "stop_token_ids": (stop,)})])[0]
    assert asked.token_ids == cut


def test_max_tokens_is_cut_to_the_context(model):
    prompt = [1] * (CONTEXT - 3)
    done = generate(make_batcher(model, eos_ids=[]), [(prompt, {"max_tokens": 100})])[0]
    assert (len(done.token_ids), done.stop_reason) == (3, "length")


def test_bad_requests_hurt_nobody_else(model):
    batcher = make_batcher(model, max_total_tokens=150)
    good = submit(batcher, [1, 2, 3], max_tokens=5, temperature=0.0)
    for prompt, settings, message in [
        ([], {"max_tokens": 5}, "empty"),
        ([1] * CONTEXT, {"max_tokens": 5}, f"{CONTEXT} tokens, but the model's context is {CONTEXT}"),
        ([1, VOCABULARY], {"max_tokens": 5}, "token ids must be in"),
        ([-1], {"max_tokens": 5}, "token ids must be in"),
        ([1] * 140, {"max_tokens": 20}, "key/value memory"),
        ([1], {"max_tokens": 0}, "max_tokens is 0"),
        ([1], {"max_tokens": 5, "temperature": -1.0}, "temperature is -1.0"),
        ([1], {"max_tokens": 5, "temperature": float("nan")}, "temperature is nan"),
        ([1], {"max_tokens": 5, "top_p": 0.0}, "top_p is 0.0"),
    ]:
        with pytest.raises(SamplingError, match=message):
            submit(batcher, prompt, **settings)
    run(batcher)
    assert len(good.result(0).token_ids) <= 5


def test_parameters_of_verl():
    params = {"temperature": 0.4, "top_k": -1, "top_p": 0.9, "logprobs": True, "repetition_penalty": 1.0, "seed": 3}
    expected = SamplingSettings(max_tokens=9, temperature=0.4, top_p=0.9, seed=3)
    assert SamplingSettings.from_params(params, default_max_tokens=9) == expected
    assert SamplingSettings.from_params({"max_tokens": 2, "seed": None}, 9) == SamplingSettings(max_tokens=2)
    assert SamplingSettings.from_params({"max_new_tokens": 2}, 9).max_tokens == 2
    with pytest.raises(SamplingError, match=r"unknown sampling parameters \['min_p'\]"):
        SamplingSettings.from_params({"min_p": 0.1}, 9)
    with pytest.raises(SamplingError, match=r"repetition_penalty is 1\.2"):
        SamplingSettings.from_params({"repetition_penalty": 1.2}, 9)


def test_queue_is_first_come_first_served_and_bounded(model):
    batcher = make_batcher(model, eos_ids=[], max_rows=3, max_total_tokens=200)
    order: list[int] = []
    sizes = [(10, 5), (10, 5), (100, 20), (10, 5), (10, 5)]
    for index, (prompt, tokens) in enumerate(sizes):
        future = submit(batcher, [1] * prompt, max_tokens=tokens)
        future.add_done_callback(lambda _, index=index: order.append(index))
    batcher.step()
    assert (batcher.num_running, batcher.num_waiting) == (
        2,
        3,
    )  # 3 rows of 120 tokens would not fit, 3 does not overtake 2
    while batcher.num_running or batcher.num_waiting:
        batcher.step()
        assert batcher.num_running <= 3
    assert order == [0, 1, 2, 3, 4]


def test_abort_and_go_on(model):
    batcher = make_batcher(model, eos_ids=[], max_rows=3)
    whole = generate(batcher, [([1, 2], {"max_tokens": 20, "seed": 1})])[0]
    futures = [submit(batcher, [1, 2], max_tokens=20, seed=1) for _ in range(4)]
    for _ in range(5):
        batcher.step()
    assert batcher.abort() == 4
    running, waiting = futures[0].result(0), futures[3].result(0)
    assert running.stop_reason == waiting.stop_reason == "aborted"
    assert running.token_ids == whole.token_ids[: len(running.token_ids)]
    assert len(running.token_ids) == len(running.log_probs) == 6
    assert waiting.token_ids == []
    assert generate(batcher, [([1, 2], {"max_tokens": 20, "seed": 1})])[0].token_ids == whole.token_ids


def test_abort_one(model):
    batcher = make_batcher(model, eos_ids=[])
    alone = generate(batcher, [([1, 2], {"max_tokens": 20, "seed": 1})])[0]
    doomed = batcher.make_request([7], SamplingSettings(max_tokens=20))
    futures = [batcher.submit(doomed), submit(batcher, [1, 2], max_tokens=20, seed=1)]
    batcher.step()
    assert batcher.abort(doomed) == 1
    run(batcher)
    assert [f.result(0).stop_reason for f in futures] == ["aborted", "length"]
    assert futures[1].result(0).token_ids == alone.token_ids


def test_cancelled_requests_cost_nothing_more(model):
    batcher = make_batcher(model, eos_ids=[], max_rows=2)
    futures = [submit(batcher, [1], max_tokens=100, seed=index) for index in range(4)]
    batcher.step()
    assert futures[0].cancel()
    assert futures[2].cancel()
    batcher.step()
    assert (batcher.num_running, batcher.num_waiting) == (2, 0)
    run(batcher)
    assert [len(futures[index].result(0).token_ids) for index in (1, 3)] == [100, 100]


def test_new_weights_and_their_version():
    model, other = make_qwen2(0), make_qwen2(1)
    batcher, stage = make_batcher(model, eos_ids=[]), WeightStage(model)
    request = ([1, 2, 3], {"max_tokens": 10, "temperature": 0.0})
    before = generate(batcher, [request])[0]
    names = list(other.state_dict())
    stage.add("a", {name: other.state_dict()[name] for name in names[:5]})
    assert generate(batcher, [request])[0] == before  # a half-received update is invisible
    stage.add("a", {name: other.state_dict()[name] for name in names[5:]})
    stage.commit("a")
    batcher.version = 4
    after = generate(batcher, [request])[0]
    assert (before.version, after.version) == (-1, 4)
    assert after.token_ids == generate(make_batcher(other, eos_ids=[]), [request])[0].token_ids != before.token_ids


def test_refused_weights_leave_the_old_ones():
    model = make_qwen2(0)
    state = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tied, norm = "lm_head.weight", "model.norm.weight"

    def refused(changed: dict[str, torch.Tensor], message: str) -> None:
        with pytest.raises(WeightUpdateError, match=message):
            replace_weights(WeightStage(model), changed)

    refused({**state, "model.extra": torch.zeros(1)}, "unexpected weight 'model.extra'")
    refused({**state, norm: torch.zeros(3)}, r"'model.norm.weight' has shape \[3\], the served model expects \[32\]")
    refused({name: t for name, t in state.items() if name != norm}, "1 of .* weights are missing.*'model.norm.weight'")
    refused({**state, tied: state[tied] + 1}, "are tied in the served model but differ")
    stage = WeightStage(model)
    stage.add("a", state)
    with pytest.raises(WeightUpdateError, match="sent twice"):
        stage.add("a", {norm: state[norm]})
    with pytest.raises(WeightUpdateError, match="not the one that was staged"):
        stage.commit("b")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    stage = WeightStage(model)
    stage.add("a", {norm: state[norm]})
    stage.add("b", {name: tensor for name, tensor in state.items() if name != tied})  # its twin is enough
    stage.commit("b")
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_broken_weights_are_an_error_and_leave_no_trace():
    model = make_qwen2()
    batcher = make_batcher(model, eos_ids=[])
    requests = ragged_requests(3)
    expected = generate(batcher, requests)
    good = model.model.norm.weight.detach().clone()
    key = model.model.layers[0].self_attn.k_proj.weight
    saved = key.detach().clone()
    with torch.no_grad():
        key.fill_(float("nan"))
    broken = submit(batcher, [1] * 80, max_tokens=4)
    run(batcher)
    with pytest.raises(GenerationError, match="not finite"):
        broken.result(0)
    with torch.no_grad():
        key.copy_(saved)
    assert torch.equal(good, model.model.norm.weight)
    assert [c.token_ids for c in generate(batcher, requests)] == [c.token_ids for c in expected]


def test_one_request_with_infinite_logits_does_not_spoil_its_neighbours():
    model = make_qwen2(tie_word_embeddings=False)
    batcher = make_batcher(model, eos_ids=[])
    request = ([1, 2, 3], {"max_tokens": 10, "seed": 1})
    expected = generate(make_batcher(model, eos_ids=[]), [request])[0]
    poison = min(set(range(4, VOCABULARY)) - set(expected.token_ids))
    with torch.no_grad():
        model.model.embed_tokens.weight[poison] = float("nan")
    futures = [
        submit(batcher, request[0], **request[1]),
        submit(batcher, [poison] * 20, max_tokens=10),
        submit(batcher, request[0], **request[1]),
    ]
    batcher.step()
    futures.append(submit(batcher, request[0], **request[1]))
    run(batcher)
    assert isinstance(futures[1].exception(0), GenerationError)
    assert all(futures[index].result(0).token_ids == expected.token_ids for index in (0, 2, 3))


def test_a_failing_model_reaches_the_requests_and_nothing_else():
    model = make_qwen2()
    batcher = make_batcher(model, eos_ids=[])
    running = submit(batcher, [1, 2], max_tokens=10)
    batcher.step()
    intact, model.forward = model.forward, _out_of_memory
    waiting = submit(batcher, [3], max_tokens=10)
    run(batcher)
    for future in (running, waiting):
        with pytest.raises(GenerationError, match="MemoryError: no room"):
            future.result(0)
    model.forward = intact
    assert len(generate(batcher, [([1, 2], {"max_tokens": 10})])[0].token_ids) == 10


def _out_of_memory(**_):
    raise MemoryError("no room")


def test_memory_is_freed_between_responses_only(model):
    batcher = make_batcher(model, eos_ids=[])
    future = submit(batcher, [1], max_tokens=3)
    batcher.step()
    with pytest.raises(RuntimeError, match="1 responses are in progress"):
        batcher.free_memory()
    run(batcher)
    batcher.free_memory()
    assert len(future.result(0).token_ids) == 3


def test_thread_serves_many_and_swaps_between_responses():
    model = make_qwen2()
    batcher = make_batcher(model, eos_ids=[])
    thread = GenerationThread(batcher)
    settings = SamplingSettings(max_tokens=30, seed=1)
    first = [thread.submit(batcher.make_request([index + 1], settings)) for index in range(5)]

    def swap() -> int:
        batcher.version = 1
        return batcher.num_running

    swapped = thread.call_when_idle(swap)
    second = [thread.submit(batcher.make_request([index + 1], settings)) for index in range(5)]
    assert swapped.result(60) == 0
    assert all(future.result(60).version == 1 for future in second)
    versions = {future.result(60).version for future in first}
    assert versions <= {-1, 1}
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 / 0).result(60)


def test_requests_hear_of_a_dead_thread(model):
    batcher = make_batcher(model)
    thread = GenerationThread(batcher)
    batcher._decode = _out_of_memory  # a bug in the batcher itself, not a failing model
    request = batcher.make_request([1], SamplingSettings(max_tokens=5, ignore_eos=True))
    with pytest.raises(GenerationError, match="the generation thread died"):
        thread.submit(request).result(60)
    with pytest.raises(GenerationError, match="the generation thread died"):
        thread.submit(batcher.make_request([1], SamplingSettings(max_tokens=5))).result(60)
    with pytest.raises(GenerationError, match="the generation thread died"):
        thread.call_when_idle(batcher.free_memory).result(60)
