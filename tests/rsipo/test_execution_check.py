"""The program of one task on real generated games, with a policy that plays and writes skills from a script."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agent_system.environments.alfworld.generator import generate_games
from agent_system.environments.alfworld.spec import AlfworldSpec
from agent_system.environments.base import EnvironmentFault
from agent_system.environments.client import LocalEnvPool
from agent_system.rollout.episode import Deadlines
from agent_system.rollout.program import GroupRollout, RolloutSettings
from agent_system.rollout.prompting import Prompter
from agent_system.rollout.scripted import ScriptedPolicy
from agent_system.rollout.worker import RolloutWorker
from rsipo.execution_check import PROMPT_TOO_LONG, SkillProgram
from rsipo.settings import SkillSettings
from rsipo.split import choose_evidence, split

SKILL = 'Search every "closed" place first, then bring the object home.'
RULE = "Do not look around for ever; open the next place instead."
LOOK = "<think>?</think><action>look</action>"


class Policy:
    """Plays the walkthrough in the episodes listed in ``winners`` (``student/3``, ``replay/0``), else only looks."""

    def __init__(self, walkthroughs, winners=(), analysis=None):
        self.walkthroughs, self.winners = walkthroughs, set(winners)
        self.analysis = analysis or self.write
        self.requests = []

    def __call__(self, request):
        self.requests.append(request)
        if request.purpose.startswith(("skill/", "rewrite/")):
            return self.analysis(request)
        if request.purpose not in self.winners:
            return LOOK
        plan = self.walkthroughs[request.request_id.split("/", 1)[1].rsplit("/", 2)[0]]
        step = int(re.search(r"This is step (\d+)\.", request.prompt).group(1))
        return f"<think>next</think><action>{plan[step - 1]}</action>"

    def write(self, request):
        skill = SKILL if "The agent succeeded" in request.prompt else RULE
        return json.dumps({"episode_summary": "It played.", "episode_skill": skill})

    def of(self, kind):
        return [request for request in self.requests if request.purpose.startswith(kind)]


@pytest.fixture(scope="module")
def prompter(tmp_path_factory):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: number for number, token in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(folder)
    return Prompter(str(folder), max_prompt_tokens=4096, max_teacher_prompt_tokens=4608)


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    root = tmp_path_factory.mktemp("games")
    generate_games(root, split="train", count=3, size="micro", seed=1)
    return AlfworldSpec(str(root), max_turns=10, cache_dir=str(root / "cache"))


@pytest.fixture(scope="module")
def tasks(spec):
    return spec.tasks("train")


@pytest.fixture(scope="module")
def walkthroughs(tasks):
    return {task.task_id: json.loads(Path(task.location).read_text())["walkthrough"] for task in tasks}


@pytest.fixture(scope="module")
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def sessions(spec):
    return LocalEnvPool(spec, 5)


@pytest.fixture
def play(loop, prompter, spec, sessions):
    """Run a program on a task: ``play(program, task, policy)``."""
    settings = RolloutSettings(
        run_seed=7, max_response_tokens=96, deadlines=Deadlines(turn_s=20, episode_s=60), generation_attempts=1
    )

    def run(program, task, policy, *, step=1, prompter=prompter, sessions=sessions, settings=settings):
        client = ScriptedPolicy(prompter, policy)
        worker = RolloutWorker(spec, prompter, client, lambda: sessions, settings)
        return loop.run_until_complete(worker.run_task(program, task, step))

    return run


PROGRAM = SkillProgram(num_rollouts=4, num_replays=2, temperature=1.0, skill=SkillSettings(max_tokens=256))


def evidence_of(task, step=1):
    return split(4, seed=7, step=step, task_id=task.task_id).evidence


def test_the_whole_check(play, tasks, walkthroughs, prompter, spec):
    task = tasks[0]
    second = evidence_of(task)[1]
    policy = Policy(walkthroughs, {f"student/{second}", "replay/0", "replay/1"})
    record = play(PROGRAM, task, policy)

    assert record.task == task
    assert [episode.status for episode in record.episodes] == ["ok"] * 4
    assert [episode.success for episode in record.episodes] == [index == second for index in range(4)]
    assert record.split == split(4, seed=7, step=1, task_id=task.task_id)
    assert record.evidence_index == second  # the success, although another one comes first in the order
    assert [writing.skill for writing in record.skills] == [SKILL if index == second else RULE for index in range(4)]
    assert all(writing.valid for writing in record.skills)
    assert record.rewrite.valid
    assert record.rewrite.skill == SKILL
    assert [replay.success for replay in record.replays] == [True, True]
    assert {replay.fingerprint for replay in record.replays} == {record.episodes[0].fingerprint}
    assert (record.replay_matched, record.state_matched) == ([True, True], True)
    assert record.errors == []
    assert set(record.seconds) == {"rollouts", "skills", "check"}

    assert {request.temperature for request in policy.of("student/") + policy.of("replay/")} == {1.0}
    assert {request.temperature for request in policy.of("skill/")} == {0.0}
    assert [request.temperature for request in policy.of("rewrite/")] == [0.3]
    assert all(SKILL in request.prompt for request in policy.of("replay/"))
    assert not any(SKILL in request.prompt or RULE in request.prompt for request in policy.of("student/"))
    assert pickle.loads(pickle.dumps(record)).task == task


def test_the_mask_is_the_tokens_of_the_skill_string(play, tasks, walkthroughs, prompter):
    record = play(PROGRAM, tasks[0], Policy(walkthroughs))
    writing = record.rewrite
    assert writing.mask.shape == writing.response_ids.shape == writing.log_probs.shape
    assert prompter.decode(writing.response_ids[writing.mask].tolist()) == RULE


def test_teacher_prompts_are_the_turns_prompts_with_the_episodes_own_skill(play, tasks, walkthroughs, prompter, spec):
    record = play(PROGRAM, tasks[0], Policy(walkthroughs, {"student/0"}))
    for episode, writing in zip(record.episodes, record.skills, strict=True):
        for turn in episode.turns:
            expected = prompter.teacher_prompt(spec, turn.context, writing.skill)
            np.testing.assert_array_equal(turn.teacher_prompt_ids, expected)
            assert len(turn.teacher_prompt_ids) > len(turn.generation.prompt_ids)


@pytest.mark.parametrize("winners", [(), (0,), (1,), (0, 1), (2,), (0, 1, 2, 3)])
def test_the_evidence_is_chosen_as_the_rule_says(play, tasks, walkthroughs, winners):
    record = play(PROGRAM, tasks[0], Policy(walkthroughs, {f"student/{index}" for index in winners}))
    assert record.evidence_index == choose_evidence(record.split, record.episodes)


def test_an_invalid_skill_teaches_nobody_and_is_not_replayed(play, tasks, walkthroughs):
    policy = Policy(walkthroughs, analysis=lambda request: '{"episode_skill": "too short"}')
    record = play(PROGRAM, tasks[0], policy)
    assert {writing.reason for writing in record.skills} == {"too_short"}
    assert all(turn.teacher_prompt_ids is None for episode in record.episodes for turn in episode.turns)
    assert (record.rewrite.valid, record.rewrite.reason) == (False, "too_short")
    assert record.rewrite.mask.all()
    assert (record.replays, record.state_matched) == ([], None)


def test_a_skill_cut_off_by_its_budget_is_invalid(play, tasks, walkthroughs):
    program = dataclasses.replace(PROGRAM, skill=SkillSettings(max_tokens=20))
    record = play(program, tasks[0], Policy(walkthroughs))
    assert record.rewrite.reason == "cut_off"


def test_a_skill_too_long_for_the_teachers_prompts_is_invalid(play, tasks, walkthroughs, prompter):
    long = json.dumps({"episode_skill": "look again " * 200})
    program = dataclasses.replace(PROGRAM, skill=SkillSettings(max_tokens=4096))
    record = play(
        program,
        tasks[0],
        Policy(walkthroughs, analysis=lambda request: long),
        prompter=dataclasses.replace(prompter, max_teacher_prompt_tokens=2000),
    )
    assert {writing.reason for writing in record.skills} == {PROMPT_TOO_LONG}
    assert record.rewrite.mask.all()
    assert record.replays == []
    assert all(turn.teacher_prompt_ids is None for episode in record.episodes for turn in episode.turns)


def test_lost_rollouts_leave_their_group_and_get_no_skill(play, tasks, walkthroughs):
    def policy(request):
        if request.purpose in {f"student/{index}" for index in evidence_of(tasks[0])}:
            raise ConnectionResetError("gone")
        return players(request)

    players = Policy(walkthroughs)
    record = play(PROGRAM, tasks[0], policy)
    lost = set(evidence_of(tasks[0]))
    assert {episode.index for episode in record.episodes if episode.status == "failed"} == lost
    assert [writing is None for writing in record.skills] == [index in lost for index in range(4)]
    assert (record.evidence_index, record.rewrite, record.replays) == (None, None, [])


def test_a_lost_analysis_is_no_invalid_skill(play, tasks, walkthroughs):
    def analysis(request):
        raise ConnectionResetError("gone")

    record = play(PROGRAM, tasks[0], Policy(walkthroughs, analysis=analysis))
    assert record.skills == [None] * 4
    assert record.evidence_index is not None
    assert record.rewrite is None
    assert len(record.errors) == 5
    assert "rewrite/0: no answer from the rollout server" in "\n".join(record.errors)


class Elsewhere:
    """A real pool whose resets, from number ``first`` on, lead to another task, or nowhere at all (``other`` None)."""

    def __init__(self, pool, first, other):
        self.pool, self.first, self.other, self.resets = pool, first, other, 0

    async def acquire(self):
        session = await self.pool.acquire()
        original = session.reset

        async def reset(task):
            self.resets += 1
            if self.resets <= self.first:
                return await original(task)
            if self.other is None:
                raise EnvironmentFault("host lost")
            return await original(self.other)

        session.reset = reset
        return session


def test_a_replay_from_another_state_is_a_mismatch(play, tasks, walkthroughs, sessions):
    elsewhere = Elsewhere(sessions, first=5, other=tasks[1])  # 4 rollouts, the first replay; the second goes wrong
    record = play(PROGRAM, tasks[0], Policy(walkthroughs), sessions=elsewhere)
    assert sorted(record.replay_matched) == [False, True]
    assert record.state_matched is False


def test_lost_replays_say_nothing_about_the_state(play, tasks, walkthroughs, sessions):
    record = play(PROGRAM, tasks[0], Policy(walkthroughs), sessions=Elsewhere(sessions, first=4, other=None))
    assert [replay.status for replay in record.replays] == ["failed", "failed"]
    assert (record.replay_matched, record.state_matched) == ([None, None], None)


def test_parts_can_be_switched_off(play, tasks, walkthroughs):
    seed, grpo = Policy(walkthroughs), Policy(walkthroughs)
    record = play(dataclasses.replace(PROGRAM, check=False, num_rollouts=3), tasks[0], seed)
    assert (seed.of("rewrite/"), seed.of("replay/"), len(seed.of("skill/"))) == ([], [], 3)
    assert (record.split.evidence, record.split.control, record.evidence_index) == ((), (0, 1, 2), None)
    record = play(dataclasses.replace(PROGRAM, check=False, write_skills=False), tasks[0], grpo)
    assert record.skills == [None] * 4
    assert len(grpo.requests) == len(grpo.of("student/"))


def test_students_do_not_depend_on_the_parts_switched_on(play, tasks, walkthroughs):
    """GRPO, SEED and RSIPO send the very same student requests: the baselines differ in the update only."""

    def students(program):
        policy = Policy(walkthroughs, {"student/1"})
        play(program, tasks[0], policy)
        return sorted(policy.of("student/"), key=lambda request: (request.purpose, request.prompt))

    everything = students(PROGRAM)
    assert students(dataclasses.replace(PROGRAM, check=False)) == everything
    assert students(dataclasses.replace(PROGRAM, check=False, write_skills=False)) == everything
    assert students(GroupRollout(num_rollouts=4)) == everything


def test_a_skill_is_written_as_soon_as_its_rollout_ends(play, tasks, walkthroughs):
    """Rollout 0 cannot end before a skill was asked for another rollout."""
    asked = asyncio.Event()
    players = Policy(walkthroughs)

    async def policy(request):
        if request.purpose.startswith("skill/"):
            asked.set()
        if request.purpose == "student/0":
            await asked.wait()
        return players(request)

    assert all(writing is not None for writing in play(PROGRAM, tasks[0], policy).skills)


def test_the_check_starts_when_the_evidence_is_certain(play, tasks, walkthroughs):
    """The first of the evidence succeeds: the others cannot end before a replay was asked for."""
    first, second = evidence_of(tasks[0])
    asked = asyncio.Event()
    players = Policy(walkthroughs, {f"student/{first}", f"student/{second}"})

    async def policy(request):
        if request.purpose.startswith("replay/"):
            asked.set()
        elif request.purpose.startswith("student/") and request.purpose != f"student/{first}":
            await asked.wait()
        return players(request)

    record = play(PROGRAM, tasks[0], policy)
    assert record.evidence_index == first
    assert [replay.status for replay in record.replays] == ["ok", "ok"]


def test_an_analysis_that_never_comes_is_given_up(play, tasks, walkthroughs):
    players = Policy(walkthroughs)

    async def policy(request):
        if request.purpose.startswith("rewrite/"):
            await asyncio.sleep(3600)
        return players(request)

    hasty = RolloutSettings(run_seed=7, max_response_tokens=256, deadlines=Deadlines(turn_s=2, episode_s=60))
    record = play(PROGRAM, tasks[0], policy, settings=hasty)
    assert record.rewrite is None
    assert record.errors == ["rewrite/0: no answer within its deadline"]
    assert all(writing.valid for writing in record.skills)
