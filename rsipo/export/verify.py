"""What an exported folder must prove before it gets its name: same weights, same logits, same token ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_system.rollout.prompting import Prompter
from rsipo.problems import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

Weights = Callable[[], Iterable[tuple[str, "torch.Tensor"]]]

#: Digits, spaces, JSON, code, several scripts and special tokens: where tokenizers that are not the same come apart.
TEXTS = (
    "You arrive at desk 1. On the desk 1, you see a alarmclock 2, a mug 13, and a pen 100.",
    "<think>find mug</think><action> go to desk 1</action>",
    '{"episode_summary": "It failed.\\n", "episode_skill": "Look in drawer 1, then cool the apple 12."}',
    "  leading,\ttabs,\n\n  lines  and trailing   ",
    "1234567890 3.14159 x=[1,2,3]; def f(x): return x**2  # comment",
    "Ünïcödé, 北京市, こんにちは, Привет, 🙂👍🏽, naïve café",
    "<|im_start|>user\nhello<|im_end|>\n<|endoftext|>",
    "",
)
_CHAT = [
    {"role": "user", "content": TEXTS[0]},
    {"role": "assistant", "content": TEXTS[1]},
    {"role": "user", "content": TEXTS[2]},
]
_LONGEST_PROBE = 256
_NO_LIMIT = 1 << 30


def load_tokenizer(folder: Path, chat_template_kwargs: Mapping[str, Any]) -> Prompter:
    """As rollout workers load it: ``AutoTokenizer``, which may replace parts of ``tokenizer.json`` by the architecture's."""
    return Prompter(str(folder), _NO_LIMIT, _NO_LIMIT, chat_template_kwargs)


def check_tokenizer(exported: Prompter, original: Prompter, texts: Sequence[str] = ()) -> int:
    """Compare the exported tokenizer with the one the policy was trained with; returns on how many texts.

    Args:
        texts: compared beside ``TEXTS``, for example what the policy wrote.

    Raises:
        UserError: ids, ends of a response or the chat template differ, with the first text that shows it.
    """
    folder = original.tokenizer_path
    hint = (
        f"if {folder} was changed since the training, move it away: then the tokenizer saved in the checkpoint counts"
    )
    for text in (*TEXTS, *texts):
        ids = exported.tokenizer.encode(text)
        if ids != original.tokenizer.encode(text) or exported.decode(ids) != original.decode(ids):
            raise UserError(f"the exported tokenizer differs from that of {folder}, as on {text[:80]!r}; {hint}")
    if exported.stop_token_ids != original.stop_token_ids:
        ends = sorted(exported.stop_token_ids), sorted(original.stop_token_ids)
        raise UserError(
            f"responses of the exported model end with tokens {ends[0]}, in training with {ends[1]}; {hint}"
        )
    if exported.encode(_CHAT).tolist() != original.encode(_CHAT).tolist():
        raise UserError(f"the exported chat template differs from that of {folder}; {hint}")
    return len(TEXTS) + len(texts)


def probes(tokenizer: Prompter) -> list[list[int]]:
    """Token ids on which logits are compared."""
    return [tokenizer.encode(_CHAT)[:_LONGEST_PROBE].tolist(), tokenizer.tokenizer.encode(TEXTS[3] + TEXTS[4])]


def probe_logits(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Logits [1, P, V] of each prompt, in the model's dtype."""
    import torch

    with torch.inference_mode():
        return [model(input_ids=torch.tensor([list(ids)])).logits.clone() for ids in prompts]


def check_model(
    folder: Path, weights: Weights, prompts: Sequence[Sequence[int]], logits: Sequence[torch.Tensor]
) -> None:
    """Load the folder as users do and compare every weight and the logits, bit by bit.

    Args:
        weights: gives the checkpoint's, in the exported dtype.
        logits: of the checkpoint's model on ``prompts``.

    Raises:
        UserError: naming what differs.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from verl_ext.export import ATTENTION

    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, attn_implementation=ATTENTION).eval()
    loaded = model.state_dict()
    for name, tensor in weights():
        found = loaded.pop(name, None)
        if found is None or found.dtype != tensor.dtype or not torch.equal(found, tensor):
            what = "is missing in" if found is None else "differs from the checkpoint's in"
            raise UserError(f"{name} {what} the exported model: it was not written; please report this")
    if loaded:
        raise UserError(f"{min(loaded)} is in the exported model but not in the checkpoint; please report this")
    for parameter in model.parameters():
        # The file's tensors may lie at odd addresses, where matrix kernels are free to round otherwise.
        parameter.data = parameter.data.clone()
    for expected, found in zip(logits, probe_logits(model, prompts), strict=True):
        if not torch.equal(expected, found):
            gap = (expected.float() - found.float()).abs().max().item()
            raise UserError(
                f"the exported model's logits differ from the checkpoint's by up to {gap:.2g}; please report this"
            )


def written_texts(audit: Path, limit: int = 200) -> list[str]:
    """Up to ``limit`` skills the policy wrote, newest first, from the run's audit; none where there is no audit."""
    texts: list[str] = []
    for path in sorted(audit.glob("step-*.jsonl"), reverse=True):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                texts.append(str(json.loads(line)["skill"]["text"]))
            except (ValueError, KeyError, TypeError):
                continue
        if len(texts) >= limit:
            break
    return texts[:limit]
