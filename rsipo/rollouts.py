"""The rollout workers of a run, as its settings describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_system.environments.base import EnvironmentSpec
from rsipo.run_settings import RunSettings
from rsipo.specs import session_opener

if TYPE_CHECKING:
    from agent_system.rollout.pool import Heartbeat, RolloutPool


def open_pool(settings: RunSettings, spec: EnvironmentSpec, client: Any, *, run_seed: int) -> RolloutPool:
    """Start the rollout workers and their environment hosts; close the pool when done. Ray must be running.

    Args:
        client: of the rollout servers.
        run_seed: all seeds derive from it.
    """
    from agent_system.rollout.episode import Deadlines
    from agent_system.rollout.pool import RolloutPool
    from agent_system.rollout.program import RolloutSettings
    from agent_system.rollout.prompting import Prompter

    workers, prompt = settings.workers, settings.prompt
    return RolloutPool(
        workers.rollout_workers,
        spec=spec,
        prompter=Prompter(
            settings.policy.path,
            prompt.max_prompt_length,
            prompt.max_teacher_prompt_length,
            settings.policy.chat_template_kwargs,
        ),
        client=client,
        open_sessions=session_opener(spec, workers),
        settings=RolloutSettings(
            run_seed=run_seed,
            max_response_tokens=prompt.max_response_length,
            deadlines=Deadlines(workers.turn_deadline, workers.episode_deadline),
            concurrent_tasks=workers.concurrent_tasks,
        ),
        task_retries=workers.task_retries,
    )


def describe_heartbeat(state: Heartbeat) -> str:
    """How far a phase of rollouts is, in a few words."""
    running = sum((progress or {}).get("episodes_running", 0) for progress in state.workers)
    return f"{state.finished}/{state.total} tasks, {running} episodes running"
