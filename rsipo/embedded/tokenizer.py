"""A tokenizer made for the embedded policy: word-level BPE plus whole phrases as single tokens.

Copying a listed action into the response is the one skill everything else needs, and it is a one-token decision when
``" desk 1"`` is one token. The tokenizer keeps Qwen2's own pre-tokenizer, because ``AutoTokenizer`` puts that one in
for every folder whose model type is ``qwen2``, whatever its tokenizer.json says.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import Qwen2Tokenizer

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TAGS = ("<think>", "</think>", "<action>", "</action>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_VERBS = (" take", " open", " move", " heat", " cool", " clean", " use", " go to")
_THOUGHTS = ("find", "look around", "put", "take", "heat", "cool", "clean", "use desklamp", "drop")
PHRASES = (
    "user\n", "assistant\n", "Task:", "\nSkill:", "\nNow:", "\nActions:", "Nothing happens.", "\nNow: Nothing happens.",
    "\nNow: You arrive at", "\nNow: You pick up the", "\nNow: You open the", "\nNow: You see a", "\nNow: You move the",
    "You arrive at", "You pick up the", "You open the", "You see a", "You move the",
    "You are in the middle of a room. Looking quickly around you, you see a",
    ". On the", ", you see a", ", you see nothing.", ", and a", ", a", " is open. In it", " is closed.",
    " from the", " to the", " using the", " with the", " under the", " and put", " it,",
    " is in", ", put it in", " it with",
    "look in every place with care, take the", " look in every place with care, take the",
    '{"episode_summary": "done:', '{"episode_summary": "failed:', '", "episode_skill": "', '."}',
    "\nResult: success\nWrite the procedure. JSON.", "\nResult: failure\nWrite the rule. JSON.",
    *_VERBS, *(f"\n>{verb}" for verb in _VERBS), *(f"<think>{thought}" for thought in _THOUGHTS),
    *(f" {number}" for number in range(1, 31)),
)  # fmt: skip
_PLACE = re.compile(r"go to (\w+ \d+)")
_MARKUP = re.compile(r"</?think>|</?action>")


def train_tokenizer(
    texts: Sequence[str], *, vocabulary: int = 1024, min_place_count: int = 20, multiple: int = 64
) -> Qwen2Tokenizer:
    """A tokenizer for the prompts and answers of generated ALFWorld games.

    Args:
        texts: training texts, without chat markup.
        vocabulary: upper limit of the BPE part; text this narrow saturates below it.
        min_place_count: how often a receptacle must occur to become a token of its own.
        multiple: see ``build_tokenizer``.
    """
    places = Counter(f" {place}" for text in texts for place in _PLACE.findall(text))
    frequent = sorted(place for place, count in places.items() if count >= min_place_count)
    parts = (part for text in texts for part in _MARKUP.split(text) if part)
    return build_tokenizer(parts, [*TAGS, *frequent, *PHRASES], vocabulary=vocabulary, multiple=multiple)


def build_tokenizer(
    texts: Iterable[str], phrases: Sequence[str], *, vocabulary: int = 1024, multiple: int = 64
) -> Qwen2Tokenizer:
    """A word-level BPE of ``texts`` plus ``phrases`` as single tokens, with the chat template of the embedded policies.

    Args:
        texts: what the BPE is made from; text inside ``phrases`` would only waste its merges.
        phrases: where several fit, the longest is taken.
        vocabulary: upper limit of the BPE part.
        multiple: the size is filled up to a multiple with reserved tokens, so that the model's embedding has exactly
            one row per token: rollouts mask everything beyond ``len(tokenizer)``.
    """
    vocab, merges = _train_bpe(texts, vocabulary)
    tokenizer = Qwen2Tokenizer(
        vocab=vocab,
        merges=merges,  # type: ignore[arg-type]  # pairs are what the backend takes
        unk_token=PAD,
        eos_token=END,
        pad_token=PAD,
        model_max_length=4096,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.padding_side = "left"
    tokenizer.add_tokens([AddedToken(START, special=True, normalized=False)], special_tokens=True)
    tokenizer.add_tokens([AddedToken(phrase, special=False, normalized=False) for phrase in phrases])
    missing = -len(tokenizer) % multiple
    reserved = [AddedToken(f"<|reserved_{n}|>", special=True, normalized=False) for n in range(missing)]
    tokenizer.add_tokens(reserved, special_tokens=True)
    return tokenizer


def _train_bpe(texts: Iterable[str], size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    backend = Qwen2Tokenizer().backend_tokenizer
    trainer = BpeTrainer(
        vocab_size=size,
        initial_alphabet=sorted(ByteLevel.alphabet()),
        special_tokens=[PAD, START, END],
        min_frequency=2,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    model = json.loads(backend.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]
