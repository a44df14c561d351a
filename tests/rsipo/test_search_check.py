"""The program of one search task against a real retriever process: leaks are counted, a killed retriever teaches nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agent_system.environments.base import Task
from agent_system.environments.search.generator import generate
from agent_system.environments.search.spec import SearchSpec
from agent_system.retrieval.build import BuildRequest, build_index
from agent_system.rollout.episode import Deadlines
from agent_system.rollout.program import RolloutSettings
from agent_system.rollout.prompting import Prompter
from agent_system.rollout.scripted import Request, ScriptedPolicy
from agent_system.rollout.worker import RolloutWorker
from rsipo.estimators import evaluate_checks
from rsipo.execution_check import SkillProgram, TaskRecord
from rsipo.record_keeping import audit_records, check_metrics, rollout_metrics
from rsipo.retriever.process import RetrieverProcess
from rsipo.settings import CheckSettings, SkillSettings
from rsipo.trainer import RSIPOTrainer, _check_outcome
from rsipo.type_statistics import TypeStatistics

CHECK = CheckSettings(max_turns=4, rho=0.0, format_reward=0.05)
SKILL = "Search for the name in the question, then answer with what its passage says."


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    generate(folder, seed=2, train=18, test=9, persons=20, cities=6, countries=4, books=12)
    build_index(folder / "index", BuildRequest(corpus=folder / "corpus.jsonl", kind="bm25"))
    return folder


@pytest.fixture(scope="module")
def spec(world: Path) -> SearchSpec:
    return SearchSpec(str(world / "train.jsonl"), None, (), observation_form="plain", retrieval_timeout=3)


@pytest.fixture(scope="module")
def task(spec: SearchSpec) -> Task:
    return next(task for task in spec.tasks("train") if "the mother of" in task.extra["question"])


@pytest.fixture(scope="module")
def prompter(tmp_path_factory: pytest.TempPathFactory) -> Prompter:
    special = ["<|endoftext|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate([*special, *alphabet])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = "{% for message in messages %}{{ message.content }}<|im_end|>{% endfor %}"
    folder = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(folder)
    return Prompter(str(folder), max_prompt_tokens=1 << 14, max_teacher_prompt_tokens=1 << 14)


def run(spec: SearchSpec, prompter: Prompter, task: Task, script: Callable[[Request], Any]) -> TaskRecord:
    settings = RolloutSettings(3, max_response_tokens=512, deadlines=Deadlines(turn_s=60, episode_s=120))
    program = SkillProgram(8, 4, 1.0, SkillSettings(max_tokens=1024))

    async def once() -> TaskRecord:
        worker = RolloutWorker(
            spec, prompter, ScriptedPolicy(prompter, script), lambda: spec.open_sessions(8), settings
        )
        record = await worker.run_task(program, task, 1)
        await worker.close()
        return record

    return asyncio.run(once())


def analysis(skill: str) -> str:
    return json.dumps({"episode_summary": "It searched.", "episode_skill": skill})


def test_a_skill_that_tells_the_answer_is_counted_and_recorded(
    world: Path, spec: SearchSpec, prompter: Prompter, task: Task
) -> None:
    (answer,) = task.extra["answers"]

    def script(request: Request) -> str:
        if request.purpose.startswith(("skill/", "rewrite/")):
            assert "It must neither state" in request.prompt
            leaks = request.purpose in ("skill/3", "rewrite/0")
            return analysis(f"Search a little and answer {answer} quickly." if leaks else SKILL)
        if "<information>Doc 1" not in request.prompt:
            return f"<think>?</think><search>{task.extra['question']}</search>"
        return f"<think>!</think><answer>{answer if request.purpose in ('student/0', 'replay/0') else '?'}</answer>"

    with RetrieverProcess(world / "index", ["--threads", "1"]) as retriever:
        record = run(replace(spec, retriever_urls=(retriever.url,)), prompter, task, script)
    assert [skill.leaks_answer for skill in record.skills if skill] == [index == 3 for index in range(8)]
    assert record.rewrite is not None
    assert (record.rewrite.leaks_answer, record.rewrite.valid) == (True, True)
    assert record.state_matched is True
    results, _ = evaluate_checks([_check_outcome(record)], TypeStatistics(0.1), CHECK)
    assert rollout_metrics([record], spec)["skill/leaks"] == 1
    assert check_metrics([record], results)["check/skill_leaks"] == 1
    (written,) = audit_records(1, [record], results, prompt_version="x", run_seed=3)
    assert [rollout.skill_leaks for rollout in written.rollouts] == [index == 3 for index in range(8)]
    assert written.skill is not None
    assert written.skill.leaks_answer is True
    assert written.task_type in ("onehop", "twohop")


def test_nothing_is_learned_from_a_retriever_that_was_killed(
    world: Path, spec: SearchSpec, prompter: Prompter, task: Task
) -> None:
    """The first four rollouts end before it dies, the others search once more after that; so do the replays."""
    (answer,) = task.extra["answers"]
    finished = asyncio.Event()
    over: set[str] = set()

    async def script(request: Request) -> str:
        if request.purpose.startswith(("skill/", "rewrite/")):
            return analysis(SKILL)
        if request.purpose.startswith("student") and "<information>Doc 1" in request.prompt:
            if int(request.purpose[-1]) < 4:
                over.add(request.purpose)
                if len(over) == 4:
                    finished.set()
                return f"<think>!</think><answer>{answer}</answer>"
            await finished.wait()
            retriever.process.kill()
        return f"<think>?</think><search>{task.extra['question']}</search>"

    with RetrieverProcess(world / "index", ["--threads", "1"]) as retriever:
        record = run(replace(spec, retriever_urls=(retriever.url,)), prompter, task, script)
    assert [(episode.status, episode.success, episode.num_turns) for episode in record.episodes] == (
        [("ok", True, 2)] * 4 + [("failed", False, 1)] * 4
    )
    assert all(episode.error.startswith("RetrievalFault: ") for episode in record.episodes[4:])
    assert [skill is not None for skill in record.skills] == [True] * 4 + [False] * 4
    assert [(replay.status, replay.num_turns) for replay in record.replays] == [("failed", 0)] * 4

    samples = RSIPOTrainer.turn_samples(SimpleNamespace(_spec=spec), [record])  # type: ignore[arg-type]
    assert {sample.episode for sample in samples} == {f"{task.task_id}/{index}" for index in range(4)}
    assert not any("retrieval failed" in turn.context.observation.text for e in record.episodes for turn in e.turns)
    ((result,), _) = evaluate_checks([_check_outcome(record)], TypeStatistics(0.1), CHECK)
    assert (result.gain, result.skill_reward, result.trust) == (None, 0.0, 1.0)
