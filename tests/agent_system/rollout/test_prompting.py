from __future__ import annotations

import dataclasses
import pickle

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from agent_system.environments.base import Observation, PromptContext
from agent_system.rollout.prompting import Prompter, PromptTooLong

SKILL = "Look into every cabinet first, then take the mug and put it on the desk."


def context_of(turns: int, words: int = 10) -> PromptContext:
    history = tuple((f"observation {turn} " + "word " * words, f"go to desk {turn}") for turn in range(1, turns + 1))
    return PromptContext("put a mug in desk.", Observation("You see a mug 1.", ("go to desk 1", "take mug 1")), history)


def test_prompt_is_the_template_with_a_generation_prompt(prompter):
    ids = prompter.encode([{"role": "user", "content": "hello"}])
    assert ids.dtype == "int32"
    text = prompter.tokenizer.decode(ids)
    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def test_template_arguments_reach_the_template(tokenizer_folder):
    prompter = Prompter(tokenizer_folder, 64, 64, chat_template_kwargs={"enable_thinking": False})
    text = prompter.tokenizer.decode(prompter.encode([{"role": "user", "content": "hello"}]))
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_stop_tokens_come_from_tokenizer_and_generation_config(prompter):
    names = prompter.tokenizer.convert_ids_to_tokens(sorted(prompter.stop_token_ids))
    assert names == ["<|endoftext|>", "<|im_end|>"]


def test_decoding_leaves_spaces_alone_and_drops_special_tokens(prompter):
    text = " take mug 1 , please . n't"
    ids = [*prompter.tokenizer.encode(text), prompter.tokenizer.eos_token_id]
    assert prompter.decode(ids) == text


def test_is_picklable_without_its_tokenizer(prompter):
    prompter.encode([{"role": "user", "content": "x"}])
    assert len(pickle.dumps(prompter)) < 1000
    assert pickle.loads(pickle.dumps(prompter)) == prompter


def test_a_prompt_that_fits_keeps_the_whole_history(prompter, spec):
    context = context_of(5)
    assert "observation 1 " in prompter.decode(prompter.student_prompt(spec, context))


def test_the_oldest_turns_go_first(prompter, spec):
    context = context_of(5, words=40)
    whole = len(prompter.student_prompt(spec, context))
    tight = dataclasses.replace(prompter, max_prompt_tokens=whole - 1)
    ids = tight.student_prompt(spec, context)
    text = tight.decode(ids)
    assert len(ids) < whole
    assert "observation 1 " not in text
    assert all(f"observation {turn} " in text for turn in range(2, 6))


@hypothesis_settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.integers(0, 8), words=st.integers(0, 60), limit=st.integers(100, 3000), repeats=st.integers(1, 20))
def test_the_teacher_keeps_task_and_skill_at_any_length(prompter, spec, turns, words, limit, repeats):
    context, skill = context_of(turns, words), " ".join([SKILL] * repeats)
    limited = dataclasses.replace(prompter, max_teacher_prompt_tokens=limit)
    if len(prompter.encode(spec.messages(context, skill=skill, history_length=0))) > limit:
        with pytest.raises(PromptTooLong):
            limited.teacher_prompt(spec, context, skill)
        return
    ids = limited.teacher_prompt(spec, context, skill)
    text = limited.decode(ids)
    assert len(ids) <= limit
    assert skill in text
    assert context.instruction in text
    assert context.observation.text in text


def test_too_long_without_history_names_sizes_and_setting(prompter, spec):
    tight = dataclasses.replace(prompter, max_prompt_tokens=20)
    with pytest.raises(PromptTooLong, match=r"\d+ tokens.*prompt\.max_prompt_length=20: raise it") as caught:
        tight.student_prompt(spec, context_of(3))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.tokens, again.limit) == (str(caught.value), caught.value.tokens, 20)
