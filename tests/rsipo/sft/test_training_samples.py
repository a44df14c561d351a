"""Samples in the model's own chat format, whole or left out; and every fault of the input in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent_system.rollout.prompting import Prompter
from rsipo.models import EMBEDDED_POLICY
from rsipo.problems import UserError
from rsipo.sft.training_export import check_export_folder
from rsipo.sft.training_loop import Schedule
from rsipo.sft.training_samples import check_answer_format, encode_file, encode_sample, messages, read_rows
from rsipo.sft.training_settings import compose_training

# The published tokenizers are not at hand. These follow the rules of their chat templates as far as they concern one question
# and one answer, and are rendered by transformers; the tokenizer is the embedded policy's, of the same class.
QWEN25 = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: An answer gets an empty block of thoughts; so does the generation prompt, in non-thinking mode only.
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
PROMPT = "You are in a room. On the desk 1, you see a mug 2.\nWrite JSON."
RESPONSE = json.dumps({"episode_summary": "The mug 2 was taken.", "episode_skill": "Go to desk 1, then take the mug."})


def row(number: int, **changes: Any) -> dict[str, Any]:
    """A row of ALFWorld."""
    return {
        "prompt": PROMPT, "response": RESPONSE, "skill_id": f"s{number}", "task_id": f"t{number}", "task_type": "pick",
        "source_success": True, "source_num_steps": 3, "parse_ok": True, **changes,
    }  # fmt: skip


def prompter(folder: Path, template: str, **kwargs: Any) -> Prompter:
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(EMBEDDED_POLICY / name, folder)
    (folder / "chat_template.jinja").write_text(template)
    return Prompter(str(folder), 4096, 4096, kwargs)


@pytest.mark.parametrize(("template", "kwargs"), [(QWEN25, {}), (QWEN3, {"enable_thinking": False})])
def test_prompt_and_response_are_the_templates_own_rendering(template: str, kwargs: dict, tmp_path: Path) -> None:
    made = prompter(tmp_path, template, **kwargs)
    prompt, response = encode_sample(made, PROMPT, RESPONSE)
    conversation = [*messages(PROMPT), {"role": "assistant", "content": RESPONSE}]
    whole = made.tokenizer.apply_chat_template(conversation, tokenize=True, return_dict=False, **kwargs)
    ours = [*prompt.tolist(), *response.tolist()]
    assert ours == whole[: len(ours)]
    assert made.tokenizer.decode(whole[len(ours) :]).strip() == ""
    assert response[-1] == made.tokenizer.eos_token_id
    check_answer_format(made, PROMPT, RESPONSE)


def test_a_template_in_thinking_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="chat_template_kwargs"):
        check_answer_format(prompter(tmp_path, QWEN3), PROMPT, RESPONSE)


def test_long_samples_are_left_out_whole_and_named(tmp_path: Path) -> None:
    made = prompter(tmp_path, QWEN25)
    rows = [row(0), row(1, prompt=PROMPT * 20), row(2)]
    prompt, response = encode_sample(made, PROMPT, RESPONSE)
    encoded = encode_file(Path("train.parquet"), rows, made, len(prompt) + len(response))
    assert [(s.prompt_ids.tolist(), s.response_ids.tolist()) for s in encoded.samples] == [
        (prompt.tolist(), response.tolist())
    ] * 2
    assert [name for name, _ in encoded.dropped] == ["s1"]
    assert any("s1" in line and "none is cut" in line for line in encoded.describe(100))
    with pytest.raises(UserError, match=r"no sample has 10 tokens or fewer"):
        encode_file(Path("train.parquet"), rows, made, 10)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, "is missing"),
        (b"no parquet", "cannot be read"),
        ([], "has no rows"),
        ([{key: value for key, value in row(0).items() if key != "response"}], "lacks the columns response"),
        ([row(0), row(1, response=" ")], "row 1 has no response"),
        ([row(0, parse_ok=False)], "row 0 is not parse_ok"),
    ],
)
def test_a_bad_file_is_one_line(rows: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    if isinstance(rows, bytes):
        path.write_bytes(rows)
    elif rows is not None:
        schema = pa.Table.from_pylist([row(0)]).schema
        pq.write_table(pa.Table.from_pylist(rows, schema=None if rows else schema), path)
    with pytest.raises(UserError, match=message) as caught:
        read_rows(path, "alfworld")
    assert "\n" not in str(caught.value)


def test_settings() -> None:
    setup = compose_training("alfworld", None, "sft-x", ["trainer.n_gpus_per_node=2"])
    settings, optimizer = setup.settings, setup.config.actor_rollout_ref.actor.optim
    assert (settings.epochs, settings.batch_size, settings.learning_rate) == (3, 8, 5e-6)
    assert (optimizer.lr, optimizer.lr_scheduler_type) == (5e-6, "constant")
    assert setup.max_length == 4096, "the embedded policy's context, which is shorter than 8192"
    assert setup.config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu >= setup.max_length
    for override, message in (
        ("sft.epoch=1", "did you mean 'epochs'"),
        ("sft.epochs=0", "sft.epochs=0"),
        ("sft.max_length=9999", "exceeds the context"),
    ):
        with pytest.raises(UserError, match=message):
            compose_training("alfworld", None, "sft-x", [override])
    with pytest.raises(UserError, match="nowhere"):
        compose_training("alfworld", "nowhere", "sft-x", [])


def test_every_epoch_takes_every_sample_once_also_from_the_middle() -> None:
    schedule = Schedule(samples=11, batch_size=4, epochs=2, seed=1)
    whole = list(schedule.batches(0))
    assert [step for step, _ in whole] == [1, 2, 3, 4, 5, 6]
    for epoch in (whole[:3], whole[3:]):
        assert sorted(index for _, batch in epoch for index in batch) == list(range(11))
    assert whole[0][1] != whole[3][1]
    for after in range(7):
        assert list(schedule.batches(after)) == whole[after:]


def test_the_export_folder_must_be_free(tmp_path: Path) -> None:
    check_export_folder(tmp_path / "new")
    check_export_folder(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="not an empty folder"):
        check_export_folder(tmp_path)
