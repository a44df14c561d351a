from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer, Qwen2Tokenizer

from rsipo.embedded.demonstrations import Demonstration
from rsipo.embedded.tokenizer import END, PAD, train_tokenizer


def _texts(demonstrations: list[Demonstration]) -> list[str]:
    return [message["content"] for d in demonstrations for message in d.messages] + [d.answer for d in demonstrations]


@pytest.fixture(scope="module")
def tokenizer(demonstrations: list[Demonstration]) -> Qwen2Tokenizer:
    return train_tokenizer(_texts(demonstrations))


def test_autotokenizer_reads_it_back_unchanged(
    tokenizer: Qwen2Tokenizer, demonstrations: list[Demonstration], tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(loaded) == len(tokenizer)
    for demonstration in demonstrations[:500]:
        prompt = tokenizer.apply_chat_template(demonstration.messages, tokenize=False, add_generation_prompt=True)
        assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")
        assert loaded.apply_chat_template(demonstration.messages, tokenize=False, add_generation_prompt=True) == prompt
        text = prompt + demonstration.answer
        ids = tokenizer(text)["input_ids"]
        assert loaded(text)["input_ids"] == ids
        assert loaded.decode(ids) == text


def test_special_tokens_and_size(tokenizer: Qwen2Tokenizer) -> None:
    assert tokenizer.eos_token == END
    assert tokenizer.pad_token == PAD
    assert tokenizer.convert_ids_to_tokens([tokenizer.eos_token_id, tokenizer.pad_token_id]) == [END, PAD]
    assert tokenizer("x<|im_end|>")["input_ids"][-1] == tokenizer.eos_token_id
    assert len(tokenizer) % 64 == 0
    assert max(tokenizer.get_vocab().values()) == len(tokenizer) - 1


def test_places_and_verbs_are_single_tokens(tokenizer: Qwen2Tokenizer) -> None:
    listed = tokenizer.tokenize("\nActions: go to desk 1")
    answered = tokenizer.tokenize("<action> go to desk 1</action>")
    assert listed[-2:] == answered[-3:-1] == [" go to", " desk 1"]


def test_any_text_survives(tokenizer: Qwen2Tokenizer) -> None:
    text = "Größe 1,000 – naïve 世界 <b>\t\n\n  x  "
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
