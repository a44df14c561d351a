"""What routing by task spares the rollout servers: prefix-cache hits and rollout time against spreading by load.

    python benchmarks/prefix_cache.py [--rounds 2] [--tasks 4] [KEY=VALUE ...]

Two vLLM servers on the CPU (docs/vllm_lane.md), the shipped policy, generated games, and the RSIPO program as a training step
runs it: rollouts, skills and the execution check. Every round plays the same tasks with the same seeds under both routings on
the same servers, whose caches are emptied before each; which of the two comes first alternates, and one unmeasured round goes
before. KEY=VALUE are overrides of the run's configuration; ``workers.routing_slack`` is the routing that is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from rsipo.configuration import compose_run
from rsipo.games import ensure_embedded_games
from rsipo.models import EMBEDDED_POLICY
from rsipo.ray_cluster import prepare_environment, ray_cluster
from rsipo.run_settings import RunSettings
from rsipo.specs import make_spec, session_opener
from rsipo.tasks import TaskSampler

SERVERS = 2
BY_LOAD, BY_TASK = "by load", "by task"
WARM_UP = 1
DEADLINE_S = 900.0
"""Of a round; no turn or episode is given up before."""
KINDS = ("student", "skill", "rewrite", "replay")


@dataclass
class CountingClient:
    """A client of the rollout servers that counts prompt tokens by kind of request.

    Attributes:
        prompt: tokens of all prompts.
        cached: those that a server found in its prefix cache.
    """

    client: Any
    prompt: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    cached: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        output = await self.client.generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params)
        kind = request_id.rsplit("/", 2)[1]
        self.prompt[kind] += len(prompt_ids)
        self.cached[kind] += output.extra_fields["num_cached_tokens"] or 0
        return output


@dataclass(frozen=True)
class Arm:
    """What was measured under one routing. ``seconds``: rollout time of each round."""

    counts: CountingClient
    seconds: list[float] = field(default_factory=list)

    def hit_rate(self, kinds: Sequence[str] = KINDS) -> float:
        return sum(self.counts.cached[kind] for kind in kinds) / max(1, sum(self.counts.prompt[kind] for kind in kinds))

    @property
    def computed(self) -> int:
        """Prompt tokens that the servers computed."""
        return sum(self.counts.prompt.values()) - sum(self.counts.cached.values())


def configuration(tasks: int, overrides: Sequence[str]) -> DictConfig:
    return compose_run(
        [
            "recipe=embedded", "hardware=cpu_vllm", f"policy.path={EMBEDDED_POLICY}", f"training.tasks_per_step={tasks}",
            f"trainer.n_gpus_per_node={SERVERS}", "training.kl_coefficient=0", f"workers.concurrent_tasks={tasks}",
            *overrides,
        ]
    )  # fmt: skip


async def measure(settings: RunSettings, cluster: Any, rounds: int, console: Console) -> dict[str, Arm]:
    """Both routings in every round, on the same tasks. The first ``WARM_UP`` rounds are not counted."""
    from agent_system.rollout.episode import Deadlines
    from agent_system.rollout.program import RolloutSettings
    from agent_system.rollout.prompting import Prompter
    from agent_system.rollout.worker import RolloutWorker
    from rsipo.execution_check import SkillProgram
    from verl_ext.task_router import client_with_router

    workers, prompt = settings.workers, settings.prompt
    spec = make_spec(settings.env)
    prompter = Prompter(settings.policy.path, prompt.max_prompt_length, prompt.max_teacher_prompt_length)
    deadlines = Deadlines(DEADLINE_S, DEADLINE_S)
    rollout = RolloutSettings(settings.run.seed, prompt.max_response_length, deadlines)
    check, temperature = settings.check, settings.training.temperature
    program = SkillProgram(check.num_rollouts, check.num_replays, temperature, settings.skill)
    sampler = TaskSampler(spec.tasks(settings.env.train_split), settings.training.tasks_per_step, settings.run.seed)
    slacks = {BY_LOAD: None, BY_TASK: workers.routing_slack}
    clients = {name: client_with_router(cluster._servers, slack) for name, slack in slacks.items()}
    sessions = session_opener(spec, workers)(0)
    arms: dict[str, Arm] = {}
    try:
        for number in range(1 - WARM_UP, rounds + 1):
            if number == 1:
                arms.clear()
            for name in (BY_LOAD, BY_TASK) if number % 2 else (BY_TASK, BY_LOAD):
                arm = arms.setdefault(name, Arm(CountingClient(clients[name])))
                worker = RolloutWorker(spec, prompter, arm.counts, lambda: sessions, rollout)
                await asyncio.to_thread(cluster.sync_weights, number)  # as before every step; empties the caches
                start = time.perf_counter()
                calls = [worker.run_task(program, task, number) for task in sampler.draw(max(1, number))]
                await asyncio.wait_for(asyncio.gather(*calls), DEADLINE_S)
                arm.seconds.append(time.perf_counter() - start)
                progress = f"round {number}, {name}: {arm.seconds[-1]:.1f} s, hit rate so far {arm.hit_rate():.1%}"
                console.print(progress + ("" if number > 0 else " (warm-up)"))
    finally:
        await sessions.close()
    return arms


def report(arms: dict[str, Arm], console: Console) -> None:
    load, task = arms[BY_LOAD], arms[BY_TASK]
    table = Table("", BY_LOAD, BY_TASK, "by task / by load")
    for kind in KINDS:
        rates = [f"{arm.hit_rate([kind]):.1%}" if arm.counts.prompt[kind] else "-" for arm in (load, task)]
        table.add_row(f"hit rate, {kind}", *rates, "")
    table.add_row("hit rate, all prompts", f"{load.hit_rate():.1%}", f"{task.hit_rate():.1%}", "", style="bold")
    table.add_row("prompt tokens", *(f"{sum(arm.counts.prompt.values()):,}" for arm in (load, task)), "")
    table.add_row(
        "of these computed", *(f"{arm.computed:,}" for arm in (load, task)), f"{task.computed / load.computed:.3f}"
    )
    means = [statistics.fmean(arm.seconds) for arm in (load, task)]
    table.add_row("seconds per round, mean", *(f"{mean:.1f}" for mean in means), f"{means[1] / means[0]:.3f}")
    console.print(table)
    ratios = [after / before for before, after in zip(load.seconds, task.seconds, strict=True)]
    console.print(f"time by task / by load in each round: {', '.join(f'{ratio:.3f}' for ratio in ratios)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tasks", type=int, default=4, help="tasks per round")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()

    console = Console(width=120)
    config = configuration(arguments.tasks, arguments.overrides)
    settings = RunSettings.from_config(config)
    ensure_embedded_games(Path(settings.env.data_root))
    prepare_environment("cpu")
    from verl_ext.cluster import PolicyCluster

    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(ray_cluster(config, logs))
        cluster = PolicyCluster(config, sync_deadline_s=settings.workers.sync_deadline)
        stack.callback(cluster.shutdown)
        cluster.start()
        arms = asyncio.run(measure(settings, cluster, arguments.rounds, console))
    report(arms, console)


if __name__ == "__main__":
    main()
