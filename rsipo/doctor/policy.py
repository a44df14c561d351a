"""The model folder, and whether a run on it fits: sizes, tokenizer, prompts, memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_system.rollout.prompting import Prompter
from rsipo.doctor.findings import Finding
from rsipo.models import ModelFacts, family, model_folder, read_model
from rsipo.plan import Plan
from rsipo.problems import UserError

_AREA = "model"
_PLAN = "plan"
_MESSAGES = [{"role": "user", "content": "Your task is to: put a mug in desk 1."}]


def check_policy(path: Path, name: str, chat_template_kwargs: dict[str, Any]) -> Iterator[Finding]:
    """Findings for the model folder ``path``, or the one that ``name`` stands for."""
    try:
        folder = path if path.is_dir() else model_folder(name)
        facts = read_model(folder)
    except UserError as error:
        reason, separator, remedy = str(error).rpartition("; ")
        if not separator:
            reason, remedy = str(error), "hf download OWNER/NAME --local-dir $MODELS_ROOT/NAME, or write its path"
        yield Finding(_AREA, "folder", "fail", reason, remedy)
        return
    yield Finding(_AREA, "folder", "ok", str(folder))
    yield Finding(_AREA, "architecture", "ok",
                  f"{facts.architecture}, {facts.parameters / 1e6:,.1f} M parameters, {facts.layers} layers; "
                  "the weights have the sizes of config.json")  # fmt: skip
    yield _family(Path(name).name)
    yield _tokenizer(folder, facts, chat_template_kwargs)


def check_plan(plan: Plan, device: str) -> Iterator[Finding]:
    """Expected memory, and every rule about sizes that the profile must keep."""
    unit = "GiB of host memory" if device == "cpu" else "GiB per GPU"
    for what, gib in plan.memory:
        yield Finding(_PLAN, what, "ok", f"{gib:.2f} {unit}")
    for check in plan.checks:
        yield Finding(_PLAN, "size", "ok" if check.holds else "fail", check.rule, "" if check.holds else check.remedy)


def _family(name: str) -> Finding:
    found = family(name)
    if found == "default":
        return Finding(_AREA, "settings", "ok", "those of any chat model (the name shows no published family)")
    return Finding(_AREA, "settings", "ok", f"those of {found}")


def _tokenizer(folder: Path, facts: ModelFacts, chat_template_kwargs: dict[str, Any]) -> Finding:
    """The tokenizer as rollout workers load it, and a prompt through the chat template."""
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("torch") is None:
        return Finding(_AREA, "tokenizer", "warn", "there, but not tried: transformers and torch are not installed",
                       "install them: bash scripts/setup.sh")  # fmt: skip
    prompter = Prompter(str(folder), facts.context_length, facts.context_length, chat_template_kwargs)
    try:
        ids, ends, size = prompter.encode(_MESSAGES), prompter.stop_token_ids, len(prompter.tokenizer)
    except Exception as error:  # tokenizers and templates fail in many ways
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return Finding(_AREA, "tokenizer", "fail", f"cannot be used: {reason[:200]}", "download the folder again")
    if not ends:
        return Finding(_AREA, "tokenizer", "fail", "it names no end of a response (eos_token)",
                       "take an instruction-tuned model: every response would run to its limit")  # fmt: skip
    if max(ids) >= facts.vocabulary or size > facts.vocabulary:
        return Finding(_AREA, "tokenizer", "fail", f"{size} tokens for {facts.vocabulary} embeddings",
                       "tokenizer and weights are of different models: download the folder again")  # fmt: skip
    kind = type(prompter.tokenizer).__name__
    return Finding(_AREA, "tokenizer", "ok", f"{kind}, {size} tokens, chat template renders")
