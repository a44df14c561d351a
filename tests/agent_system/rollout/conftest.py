"""Real generated games, a real byte-level tokenizer with a chat template, and scripted policies that play."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agent_system.environments.alfworld.generator import generate_games
from agent_system.environments.alfworld.spec import AlfworldSpec
from agent_system.environments.base import Task
from agent_system.environments.client import LocalEnvPool
from agent_system.rollout.episode import Deadlines
from agent_system.rollout.policy import Policy
from agent_system.rollout.program import RolloutSettings, TaskContext
from agent_system.rollout.prompting import Prompter
from agent_system.rollout.scripted import Request, ScriptedPolicy

# As Qwen3's: with enable_thinking=False the prompt itself holds an empty think block.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


@dataclass(frozen=True)
class Player:
    """Script: plays the game's walkthrough, over and over, at the step that the prompt names."""

    walkthroughs: dict[str, list[str]]

    def __call__(self, request: Request) -> str:
        task_id = request.request_id.split("/", 1)[1].rsplit("/", 2)[0]
        found = re.search(r"This is step (\d+)\.", request.prompt)
        assert found, "the prompt does not say which step it is"
        plan = self.walkthroughs[task_id]
        return f"<think>next</think><action>{plan[(int(found.group(1)) - 1) % len(plan)]}</action>"


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    text = "You see a mug 1 on the desk 1. take mug 1 from desk 1. <think>next</think><action>go to desk 1</action>"
    tokenizer.train_from_iterator([text] * 4, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = CHAT_TEMPLATE
    folder = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    return str(folder)


@pytest.fixture(scope="session")
def prompter(tokenizer_folder: str) -> Prompter:
    return Prompter(tokenizer_folder, max_prompt_tokens=4096, max_teacher_prompt_tokens=5120)


@pytest.fixture(scope="session")
def spec(tmp_path_factory: pytest.TempPathFactory) -> AlfworldSpec:
    root = tmp_path_factory.mktemp("games")
    generate_games(root, split="train", count=6, size="micro", seed=0)
    return AlfworldSpec(str(root), max_turns=15, cache_dir=str(root / "cache"))


@pytest.fixture(scope="session")
def tasks(spec: AlfworldSpec) -> list[Task]:
    return spec.tasks("train")


@pytest.fixture(scope="session")
def walkthroughs(tasks: list[Task]) -> dict[str, list[str]]:
    return {task.task_id: json.loads(Path(task.location).read_text())["walkthrough"] for task in tasks}


@pytest.fixture(scope="session")
def player(walkthroughs: dict[str, list[str]]) -> Player:
    return Player(walkthroughs)


@pytest.fixture
def settings() -> RolloutSettings:
    return RolloutSettings(run_seed=7, max_response_tokens=64, deadlines=Deadlines(turn_s=20, episode_s=60))


@pytest.fixture(scope="session")
def run() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Runs a coroutine; all tests share one event loop, to which the environment slots belong."""
    loop = asyncio.new_event_loop()
    yield loop.run_until_complete
    loop.close()


@pytest.fixture(scope="session")
def sessions(spec: AlfworldSpec) -> LocalEnvPool:
    return LocalEnvPool(spec, 4)


@pytest.fixture
def make_context(
    prompter: Prompter, spec: AlfworldSpec, sessions: LocalEnvPool, settings: RolloutSettings
) -> Callable[..., TaskContext]:
    """A context with a scripted policy: ``make_context(task, script)``."""

    def make(task: Task, script: Callable[[Request], Any], **changes: Any) -> TaskContext:
        values = {"spec": spec, "prompter": prompter, "sessions": sessions, "settings": settings, "step": 1} | changes
        client = ScriptedPolicy(values["prompter"], script)
        return TaskContext(task, policy=Policy(client, values.pop("prompter"), attempts=3, backoff_s=0.0), **values)

    return make
