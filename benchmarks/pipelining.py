"""What the execution check costs when it is pipelined, when it is a phase of its own, and what a step takes without it.

    python benchmarks/pipelining.py [--steps 5] [--tasks 16] [--slots 128]

Real: the rollout worker, the RSIPO program, and episode lengths (played on real ALFWorld games, ``data/``).
Simulated, and named so: the server (``SimulatedServer``, whose tokens slow down the more requests it has), the
environment (``SimulatedHousehold``, a fixed time per call) and the clock (``VirtualClockLoop``: waiting takes none, so
the result depends neither on the machine nor on its load). The three variants see the same episodes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import selectors
import statistics
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from agent_system.environments.base import (
    Action,
    Environment,
    Observation,
    PromptContext,
    ResetResult,
    StepResult,
    Task,
)
from agent_system.rollout.episode import Deadlines
from agent_system.rollout.program import RolloutSettings, TaskContext
from agent_system.rollout.prompting import Prompter
from agent_system.rollout.scripted import Request, ScriptedOutput
from agent_system.rollout.seeds import derive_seed
from agent_system.rollout.types import Episode
from agent_system.rollout.worker import RolloutWorker
from rsipo.execution_check import SkillProgram, TaskRecord
from rsipo.settings import SkillSettings
from rsipo.split import split

LENGTHS = Path(__file__).parent / "data" / "alfworld_episode_lengths.json"
NEVER = Deadlines(turn_s=1e9, episode_s=1e9)
ANALYSIS = json.dumps({"episode_summary": "-", "episode_skill": "a skill of at least five words"})


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        self._virtual_s = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._virtual_s

    def jump(self, seconds: float) -> None:
        self._virtual_s += seconds


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("deadlock: everything waits and no timer is set")
        self._loop.jump(timeout)
        return super().select(0)


@dataclass(frozen=True)
class SimulatedServer:
    """A batching server: a token takes ``token_s`` alone and longer with others, at most ``capacity`` requests at once.

    Episodes end at their drawn length: the answer of the last turn of a success says so to the household.
    """

    lengths: Mapping[str, Mapping[str, Any]]
    token_s: float = 0.008
    crowding: float = 1 / 64
    capacity: int = 256

    @cached_property
    def _state(self) -> _ServerState:
        return _ServerState(asyncio.Semaphore(self.capacity))

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> ScriptedOutput:
        prompt = bytes(prompt_ids).decode()
        request = Request(request_id, prompt, 0.0, sampling_params["max_tokens"], sampling_params.get("seed"))
        text, tokens = self._answer(request)
        state = self._state
        async with state.permits:
            state.running += 1
            for _ in range(0, tokens, 16):
                await asyncio.sleep(16 * self.token_s * (1 + self.crowding * state.running))
            state.running -= 1
        ids = [*text.encode(), 0]
        return ScriptedOutput(ids, [0.0] * len(ids))

    def _answer(self, request: Request) -> tuple[str, int]:
        rng = random.Random(request.seed)
        kind, index = request.purpose.split("/")
        if kind not in ("student", "replay"):
            return ANALYSIS, rng.randint(200, 500)
        task_id = request.request_id.split("/", 1)[1].rsplit("/", 2)[0]
        turns, success = self.lengths[task_id][kind][int(index)]
        found = re.search(r"step (\d+)", request.prompt)
        last = found is not None and int(found.group(1)) == turns
        return ("win" if last and success else "go on"), rng.randint(60, 200)


@dataclass
class _ServerState:
    permits: asyncio.Semaphore
    running: int = 0


@dataclass(frozen=True)
class SimulatedHousehold:
    """Specification and slots of the simulated environment: it is won when the policy says ``win``."""

    slots: int
    call_s: float = 0.05
    max_turns: int = 50
    history_length: int = 0
    success_reward: float = 10.0
    invalid_action_penalty: float = 0.1
    inadmissible_is_invalid: bool = False
    name: str = "alfworld"

    def make(self) -> Environment:
        raise NotImplementedError("the simulated household lives in the event loop: use sessions()")

    def project(self, response: str) -> Action:
        return Action(response, valid=True)

    def messages(
        self, context: PromptContext, *, skill: str | None = None, history_length: int | None = None
    ) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"step {context.step}"}]

    def tasks(self, split: str) -> Sequence[Task]:
        return []

    def sessions(self) -> _Slots:
        return _Slots(asyncio.Semaphore(self.slots), self.call_s)


@dataclass
class _Slots:
    permits: asyncio.Semaphore
    call_s: float

    async def acquire(self) -> _Slots:
        await self.permits.acquire()
        return self

    def release(self) -> None:
        self.permits.release()

    async def reset(self, task: Task) -> ResetResult:
        await asyncio.sleep(self.call_s)
        return ResetResult("a household task", Observation("You are in a room."), task.sha256)

    async def step(self, action: str) -> StepResult:
        await asyncio.sleep(self.call_s)
        return StepResult(Observation("You see nothing."), done=action == "win", success=action == "win")

    async def close(self) -> None:
        return None


class _Bytes:
    """Tokenizer of the simulation: one token per byte, 0 ends a response."""

    eos_token_id = 0

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> list[int]:
        return list(messages[-1]["content"].encode())

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return bytes(token for token in ids if token).decode()


class _BytePrompter(Prompter):
    tokenizer = _Bytes()  # type: ignore[assignment]


@dataclass(frozen=True)
class SeparateCheck:
    """Second phase of the variant that is not pipelined: the check of tasks whose rollouts are all done."""

    program: SkillProgram
    records: Mapping[str, TaskRecord]

    async def run(self, task: Task, context: TaskContext) -> TaskRecord:
        record = self.records[task.task_id]
        record.split = split(
            self.program.num_rollouts, seed=context.settings.run_seed, step=context.step, task_id=task.task_id
        )
        await self.program.execution_check([_over(episode) for episode in record.episodes], record, context)
        return record


def _over(episode: Episode) -> asyncio.Future[Episode]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(episode)
    return future


def draw_step(games: Sequence[Mapping[str, Any]], count: int, step: int) -> dict[str, dict[str, Any]]:
    """Tasks of one step: games drawn with replacement, their measured lengths in random order."""
    rng = random.Random(derive_seed("step", step))
    drawn = {}
    for number in range(count):
        game = rng.choice(games)
        student, teacher = (rng.sample(game[kind], len(game[kind])) for kind in ("student", "teacher"))
        drawn[f"{number}:{game['game']}"] = {"student": student, "replay": teacher}
    return drawn


def simulate(work: Coroutine[Any, Any, float]) -> float:
    loop = VirtualClockLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


async def step_time(variant: str, lengths: Mapping[str, Any], slots: int, step: int) -> float:
    """Simulated seconds of one step's rollout phase; ``variant`` is none, pipelined or separate."""
    household = SimulatedHousehold(slots)
    settings = RolloutSettings(0, max_response_tokens=512, deadlines=NEVER, concurrent_tasks=len(lengths))
    prompter = _BytePrompter("", max_prompt_tokens=10**6, max_teacher_prompt_tokens=10**6)
    worker = RolloutWorker(household, prompter, SimulatedServer(lengths), household.sessions, settings)
    skill = SkillSettings(max_prompt_length=10**6)
    full = SkillProgram(num_rollouts=8, num_replays=4, temperature=1.0, skill=skill)
    tasks = [Task(task_id, "any", "", sha256=task_id) for task_id in lengths]
    program = full if variant == "pipelined" else replace(full, check=False)
    records = await asyncio.gather(*(worker.run_task(program, task, step) for task in tasks))
    if variant == "separate":
        phase = SeparateCheck(full, {record.task.task_id: record for record in records})
        await asyncio.gather(*(worker.run_task(phase, task, step) for task in tasks))
    return asyncio.get_running_loop().time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=16, help="tasks per step, 8 rollouts and 4 replays each")
    parser.add_argument("--slots", type=int, default=128, help="environment slots")
    arguments = parser.parse_args()

    data = json.loads(LENGTHS.read_text())
    print(f"episode lengths: {data['source']}; server, environment and clock are simulated")
    variants = ("none", "separate", "pipelined")
    print(f"{'step':>5} " + " ".join(f"{name:>10}" for name in variants) + "   simulated s")
    times: dict[str, list[float]] = {name: [] for name in variants}
    for step in range(1, arguments.steps + 1):
        lengths = draw_step(data["games"], arguments.tasks, step)
        for name in variants:
            times[name].append(simulate(step_time(name, lengths, arguments.slots, step)))
        print(f"{step:5d} " + " ".join(f"{times[name][-1]:10.1f}" for name in variants), flush=True)
    none, separate, pipelined = (statistics.fmean(times[name]) for name in variants)
    print(f"mean {none:10.1f} {separate:10.1f} {pipelined:10.1f}")
    print(f"pipelined / separate = {pipelined / separate:.3f}")
    print(f"pipelined / none     = {pipelined / none:.3f}")
    print(f"separate / none      = {separate / none:.3f}")
    print(
        f"pipelining hides {(separate - pipelined) / (separate - none):.0%} of the time that the check adds as a phase"
    )


if __name__ == "__main__":
    main()
