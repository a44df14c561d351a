"""From the rows of a Parquet file to token ids: whole samples in the model's own chat format, or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from agent_system.rollout.prompting import Prompter
from rsipo.problems import UserError
from rsipo.sft.dataset import SCHEMAS

if TYPE_CHECKING:
    from verl_ext.batch import Sample

_SHOWN = 5
_MAKE = "make it with prepare_data.sh"


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """The samples of one file.

    Attributes:
        samples: in the file's order.
        dropped: (skill_id, tokens) of the samples that are too long.
    """

    path: Path
    samples: list[Sample]
    dropped: list[tuple[str, int]]

    @property
    def tokens(self) -> int:
        return sum(sample.length for sample in self.samples)

    def describe(self, max_length: int) -> list[str]:
        """Lines for a person: how many samples, how long, and which were dropped."""
        lengths = [sample.length for sample in self.samples]
        lines = [
            f"{self.path.name}: {len(lengths)} samples, {self.tokens:,} tokens of which "
            f"{sum(len(sample.response_ids) for sample in self.samples):,} are trained on; longest {max(lengths)}"
        ]
        if self.dropped:
            shown = ", ".join(f"{name} ({tokens})" for name, tokens in self.dropped[:_SHOWN])
            more = ", …" if len(self.dropped) > _SHOWN else ""
            lines.append(
                f"{self.path.name}: {len(self.dropped)} samples have more than {max_length} tokens and are left out, "
                f"none is cut: {shown}{more}"
            )
        return lines


def read_rows(path: Path, benchmark: str) -> list[dict[str, Any]]:
    """The rows of ``train.parquet`` or ``val.parquet``.

    Raises:
        UserError: no such file, no Parquet file, columns missing, no rows, or a row without prompt or response.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing; {_MAKE}")
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} cannot be read ({str(error).splitlines()[0]}); {_MAKE}") from error
    names = SCHEMAS[benchmark].names
    if missing := [name for name in names if name not in table.column_names]:
        raise UserError(f"{path} lacks the columns {', '.join(missing)} of {benchmark}; is it of another benchmark?")
    rows: list[dict[str, Any]] = table.select(names).to_pylist()
    if not rows:
        raise UserError(f"{path} has no rows; {_MAKE}")
    for number, row in enumerate(rows):
        for name in ("prompt", "response"):
            if not isinstance(row[name], str) or not row[name].strip():
                raise UserError(f"{path} row {number} has no {name}; `rsipo sft check` shows all that is wrong")
        if not row["parse_ok"]:
            raise UserError(f"{path} row {number} is not parse_ok; `rsipo sft check` shows all that is wrong")
    return rows


def encode_file(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    prompter: Prompter,
    max_length: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> EncodedFile:
    """Encode every row; those of more than ``max_length`` tokens are left out whole.

    Raises:
        UserError: the model's chat template does not end an answer as expected, or no sample is short enough.
    """
    from verl_ext.batch import Sample

    check_answer_format(prompter, str(rows[0]["prompt"]), str(rows[0]["response"]))
    samples, dropped = [], []
    for number, row in enumerate(rows, start=1):
        prompt, response = encode_sample(prompter, str(row["prompt"]), str(row["response"]))
        if (tokens := len(prompt) + len(response)) > max_length:
            dropped.append((str(row["skill_id"]), tokens))
        else:
            samples.append(Sample(prompt, response))
        progress(number, len(rows))
    if not samples:
        shortest = min(tokens for _, tokens in dropped)
        raise UserError(
            f"{path}: no sample has {max_length} tokens or fewer, the shortest has {shortest}: raise sft.max_length"
        )
    return EncodedFile(path, samples, dropped)


def encode_sample(prompter: Prompter, prompt: str, response: str) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of the prompt (int32 [P], up to where the answer begins) and of the response (int32 [R], end included).

    They are tokenized apart, as in a rollout: the prompt's ids are exactly those the policy will be given.
    """
    ids = prompter.tokenizer.encode(response, add_special_tokens=False)
    answer = np.asarray([*ids, prompter.tokenizer.eos_token_id], dtype=np.int32)
    return prompter.encode(messages(prompt)), answer


def check_answer_format(prompter: Prompter, prompt: str, response: str) -> None:
    """The template's own rendering of the whole conversation is our prompt and response, up to white space at its end.

    Raises:
        UserError: it is not, so the model would be trained on another format than its own.
    """
    conversation = [*messages(prompt), {"role": "assistant", "content": response}]
    ours = _rendered(prompter, messages(prompt), True) + response + str(prompter.tokenizer.eos_token)
    whole = _rendered(prompter, conversation, False)
    if not whole.startswith(ours) or whole[len(ours) :].strip():
        raise UserError(
            f"model {prompter.tokenizer_path}: its chat template ends a conversation with {whole[-60:]!r}, not with the answer "
            f"and {prompter.tokenizer.eos_token!r}; use an instruction-tuned model, or set policy.chat_template_kwargs"
        )


def messages(prompt: str) -> list[dict[str, str]]:
    """The conversation in which the policy is asked for a skill."""
    return [{"role": "user", "content": prompt}]


def _rendered(prompter: Prompter, conversation: list[dict[str, str]], ask: bool) -> str:
    text = prompter.tokenizer.apply_chat_template(
        conversation, add_generation_prompt=ask, tokenize=False, **prompter.chat_template_kwargs
    )
    return str(text)
