from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from rsipo.settings import SkillSettings
from rsipo.skills import leaks_answer, read_skill, read_skill_tokens, token_spans

PLAIN = SkillSettings()
WORDS = "Look in the cabinet first."


def read(text: str, **options):
    return read_skill(text, finished=options.pop("finished", True), settings=PLAIN, **options)


# ---------------------------------------------------------------------------------------------- parsing


@pytest.mark.parametrize(
    "text",
    [
        '{"episode_summary": "s", "episode_skill": "Look in the cabinet first."}',
        '{"episode_skill": "Look in the cabinet first.", "episode_summary": "s"}',
        '```json\n{"episode_summary": "s",\n "episode_skill": "Look in the cabinet first.",\n}\n```',
        'Sure! Here {it} is: {"episode_summary": "s", "episode_skill": "Look in the cabinet first."} Anything else?',
        "{'episode_summary': 's', 'episode_skill': 'Look in the cabinet first.', 'ok': True, 'no': None}",
        '{"episode_summary": "s", "n": [1, -2.5e3, [], {"a": null,},], "episode_skill": "Look in the cabinet first."}',
        '{"episode_summary": "s", "episode_skill": " Look in the cabinet first.\\n"}',
        '{"episode_summary": "s", "episode\\u005fskill": "Look in the \\u0063abinet first."}',
        '{"note": "{"} {"episode_summary": "s", "episode_skill": "Look in the cabinet first."}',
        '{"episode_summary": "s", "episode_skill": "an earlier one, to be ignored here", '
        '"episode_skill": "Look in the cabinet first."}',
        '{"analysis": {"episode_summary": "s", "episode_skill": "Look in the cabinet first."}}',
        '{"episode_skill": "<the skill>", "episode_summary": "x"}\n'
        '{"episode_summary": "s", "episode_skill": "Look in the cabinet first."}',
    ],
    ids=[
        "plain",
        "order",
        "fence",
        "around",
        "python",
        "values",
        "space",
        "escaped key",
        "brace",
        "twice",
        "nested",
        "echo",
    ],
)
def test_tolerated(text):
    skill = read(text)
    assert (skill.valid, skill.reason, skill.text) == (True, "", WORDS)
    assert skill.summary == "s"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no_json"),
        ("Look in the cabinet first, then in the fridge.", "no_json"),
        ('{"episode_skill": "Look in the cabinet first.', "no_json"),
        ('{"episode_skill": "Look in the cabinet first."', "no_json"),
        ('{"episode_summary": "It looked in the cabinet first."}', "no_skill"),
        ('{"episode_skill": ["Look", "in", "the", "cabinet", "first"]}', "not_a_string"),
        ('{"episode_skill": null}', "not_a_string"),
        ('{"episode_skill": ""}', "empty"),
        ('{"episode_skill": " \\n "}', "empty"),
        ('{"episode_skill": "Look in the cabinet."}', "too_short"),
        ('{"episode_skill": "Look in the cabinet \\ud83d first."}', "broken_unicode"),
        ("{" * 5000, "no_json"),
        ('{"a":' * 5000, "no_json"),
        ('{"a' * 3000, "no_json"),
    ],
)
def test_invalid_with_reason(text, reason):
    skill = read(text)
    assert (skill.valid, skill.reason) == (False, reason)


def test_a_generation_that_was_cut_off_is_invalid_even_if_it_parses():
    skill = read(f'{{"episode_skill": "{WORDS}"}}', finished=False)
    assert (skill.valid, skill.reason) == (False, "cut_off")
    assert read("no object", finished=False).reason == "cut_off"


def test_a_quoted_object_inside_a_summary_is_not_the_skill():
    inner = json.dumps({"episode_skill": "the wrong one, from inside the summary"})
    text = json.dumps({"episode_summary": f"I once wrote {inner}", "episode_skill": WORDS})
    assert read(text).text == WORDS
    only_python = "{\"episode_summary\": \"see {'episode_skill': 'the wrong one of five words'}\"}"
    assert read(only_python).reason == "no_skill"


@pytest.mark.parametrize(
    ("skill", "answers", "leaks"),
    [
        ("Search for The Eiffel  Tower, then read on.", ["eiffel tower"], True),
        ("Search for Eiffel-Tower; it was built in 1889.", ["1,889"], True),
        ("Search for towers, then answer yes or no.", ["yes"], False),
        ("Say Parisian things about it.", ["Paris"], False),
        ("Find the birth year of the director first.", ["Ann", "the"], False),
        ("Use the evidence.", [], False),
    ],
)
def test_answer_leaks(skill, answers, leaks):
    assert leaks_answer(skill, answers) is leaks


def test_leaks_are_counted_and_refused_only_on_request():
    text = '{"episode_skill": "The answer is always Paris, so say it."}'
    counted = read(text, answers=["Paris"])
    assert counted.valid
    assert counted.leaks_answer
    refused = read_skill(text, finished=True, settings=SkillSettings(reject_leaks=True), answers=["Paris"])
    assert (refused.valid, refused.reason, refused.leaks_answer) == (False, "answer_leak", True)


# ---------------------------------------------------------------------------------------------- the mask


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """The bytes of a byte-level token, by the alphabet's own table."""
    if token == tokenizer.token_to_id("<|im_end|>"):
        return b""
    return bytes(BYTE_OF[character] for character in tokenizer.id_to_token(token))


def byte_alphabet() -> dict[str, int]:
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + n): byte for n, byte in enumerate(shifted)}


BYTE_OF = byte_alphabet()


def expected_mask(tokenizer: Tokenizer, ids: list[int], text: str, raw_value: str) -> list[bool]:
    """Tokens whose bytes overlap those of the last occurrence of ``raw_value``."""
    start = len(text[: text.rindex(raw_value)].encode())
    end = start + len(raw_value.encode())
    mask, position = [], 0
    for token in ids:
        after = position + len(token_bytes(tokenizer, token))
        mask.append(position < end and after > start and after > position)
        position = after
    return mask


def mask_of(ids, decode, **options):
    return read_skill_tokens(ids, decode, finished=True, settings=PLAIN, **options)


SKILL_VALUES = [
    "Look in the cabinet first, then put it away.",
    'Open the \\"fridge\\",\\ncool the mug,\\tthen put it.',
    "Look \\u4f60\\u597d in the cabinet \\ud83d\\ude00 first.",
    "Look 你好 in the cabinet 😀 first é.",
    "你 Look in the cabinet first 你",
    "\\\\Look in the cabinet first\\\\",
    "It looked in the cabinet.",
]


@pytest.mark.parametrize("value", SKILL_VALUES)
@pytest.mark.parametrize(
    "layout", ['{"episode_summary": "V", "episode_skill": "V"}', '```json\n{"episode_skill":"V"}\n```']
)
def test_mask_is_exactly_the_value(tokenizer, decode, value, layout):
    text = layout.replace("V", value)
    ids = [*tokenizer.encode(text).ids, tokenizer.token_to_id("<|im_end|>")]
    skill, mask = mask_of(ids, decode)
    assert skill.valid
    assert mask.tolist() == expected_mask(tokenizer, ids, text, value)
    assert not mask[-1]


def test_merges_across_the_quotes_count_and_pure_punctuation_does_not(tokenizer, decode):
    text = '{"episode_summary": "done", "episode_skill": "Look in the cabinet first, then put it away."}'
    ids = tokenizer.encode(text).ids
    _, mask = mask_of(ids, decode)
    pieces = [decode([token]) for token in ids]
    chosen = [piece for piece, kept in zip(pieces, mask, strict=True) if kept]
    first, last = mask.nonzero()[0][[0, -1]]
    assert any('"' in piece for piece in (chosen[0], chosen[-1])), "the corpus must teach a merge across a quote"
    assert "".join(chosen).strip(' "}') == "Look in the cabinet first, then put it away."
    assert not mask[:first].any()
    assert not mask[last + 1 :].any()


def test_a_quote_token_of_its_own_is_outside(tokenizer, decode):
    text = f'{{"episode_skill": "{WORDS}"}}'
    ids = [tokenizer.token_to_id(chr_of_byte(byte)) for byte in text.encode()]
    _, mask = mask_of(ids, decode)
    start = text.index(WORDS)
    assert mask.tolist() == [start <= n < start + len(WORDS) for n in range(len(text))]


def chr_of_byte(byte: int) -> str:
    return next(character for character, value in BYTE_OF.items() if value == byte)


def test_invalid_output_masks_all_tokens(tokenizer, decode):
    ids = [*tokenizer.encode("no object at all").ids, tokenizer.token_to_id("<|im_end|>")]
    skill, mask = mask_of(ids, decode)
    assert not skill.valid
    assert mask.all()
    assert len(mask) == len(ids)
    assert mask.dtype == np.bool_


def test_empty_response(decode):
    skill, mask = mask_of([], decode)
    assert not skill.valid
    assert mask.shape == (0,)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), min_size=1, max_size=6),
        min_size=5,
        max_size=9,
    ),
    ascii_only=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_mask_for_any_text_and_any_segmentation(tokenizer, decode, words, ascii_only, seed):
    """Sampled tokens need not be the tokenizer's own segmentation: pieces here are split into bytes at random."""
    value = "x ".join(words)
    raw = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
    text = f'{{"episode_summary": "{raw}", "episode_skill": "{raw}"}}'
    draw = np.random.default_rng(seed)
    ids = []
    for token in tokenizer.encode(text).ids:
        if draw.random() < 0.4:
            ids += [tokenizer.token_to_id(character) for character in tokenizer.id_to_token(token)]
        else:
            ids.append(token)
    found, spans = token_spans(ids, decode)
    assert found == text
    assert (spans[1:, 0] <= spans[:-1, 1]).all(), "no gap between tokens"
    skill, mask = mask_of(ids, decode)
    if skill.valid:
        assert skill.text == value.strip()
        assert mask.tolist() == expected_mask(tokenizer, ids, text, raw)


def test_bytes_that_never_become_a_character(tokenizer, decode):
    """Half a character before the closing quote: the quote that follows has no part in it."""
    head = f'{{"episode_skill": "{WORDS} '
    ids = [tokenizer.token_to_id(chr_of_byte(byte)) for byte in head.encode() + b"\xe4\xbd" + b'"}']
    text, spans = token_spans(ids, decode)
    assert text == head + '\ufffd"}'
    skill, mask = mask_of(ids, decode)
    assert skill.valid
    start = len('{"episode_skill": "')
    assert mask.nonzero()[0].tolist() == list(range(start, len(head) + 2))
    assert spans[-2:].tolist() == [[len(text) - 2, len(text) - 1], [len(text) - 1, len(text)]]


def test_spans_with_a_decoder_that_drops_the_first_space():
    """Metaspace decoders strip the space of the first token they are given; increments must not."""
    words = ["▁{", '"', "episode_skill", '":', '▁"', "▁Look", "▁in", "▁the", "▁cab", "inet", "▁first", '"}']
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.decoder = decoders.Metaspace()
    ids = list(range(len(words)))
    skill, mask = mask_of(ids, lambda ids: tokenizer.decode(list(ids)))
    assert skill.text == "Look in the cabinet first"
    assert [words[n] for n in mask.nonzero()[0]] == ["▁Look", "▁in", "▁the", "▁cab", "inet", "▁first"]
