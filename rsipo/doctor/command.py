"""``rsipo doctor``: look at everything a run needs, and say what is wrong and what to do about it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from rsipo.configuration import compose_run, options
from rsipo.doctor.data import check_data
from rsipo.doctor.findings import Finding, findings_table, verdict
from rsipo.doctor.machine import check_machine, check_retriever
from rsipo.doctor.policy import check_plan, check_policy
from rsipo.doctor.software import check_software
from rsipo.embedded_runs import EMBEDDED_RUNS
from rsipo.launch import Request, parse_request, request_overrides
from rsipo.preflight import inspect
from rsipo.problems import UserError
from rsipo.run_settings import RunSettings


def doctor_command(arguments: Sequence[str]) -> int:
    """Run ``rsipo doctor [ENV [MODEL]] [KEY=VALUE ...]``; 1 when something fails, else 0.

    Raises:
        UserError: the words themselves are wrong.
    """
    request = parse_request(arguments)
    console = Console(highlight=False)
    findings = []
    with console.status("looking …") as status:
        for finding in examine(request):
            findings.append(finding)
            status.update(f"{finding.area}: {finding.what}")
    console.print(findings_table(findings))
    console.print(verdict(findings))
    return 1 if any(finding.level == "fail" for finding in findings) else 0


def examine(request: Request) -> Iterator[Finding]:
    """Every finding for what ``rsipo train`` would do with the same words."""
    try:
        # A run folder that is in use is nothing wrong with the machine.
        overrides = ["run.resume=auto", f"panel={_panel(request)}", *request_overrides(request)]
        config = compose_run(overrides)
        settings = RunSettings.from_config(config)
    except UserError as error:
        yield from _examine_without_configuration(request, str(error))
    else:
        yield from _examine(request, config, settings)


def _examine_without_configuration(request: Request, problem: str) -> Iterator[Finding]:
    """Without veRL, or with a wrong setting, there is no configuration; machine and model can be looked at all the same."""
    device, rollout, gpus = ("cpu", "cpu", 0) if request.model is None else ("cuda", "vllm", 8)
    yield from check_software(device, rollout, request.environment)
    yield Finding("software", "configuration", "fail", problem, "correct this first; data and plan need it")
    yield from check_machine(device, gpus, 0.0, Path(os.environ.get("RSIPO_WORK", "outputs")))
    name = request.model or str(EMBEDDED_RUNS[request.environment].policy)
    yield from check_policy(Path(name), name, {})


def _examine(request: Request, config: DictConfig, settings: RunSettings) -> Iterator[Finding]:
    device, rollout = str(config.trainer.device), str(config.actor_rollout_ref.rollout.name)
    name = request.model or settings.policy.path
    makes_data = request.model is None and not _given(request, "env.data_root")
    gpus, gpu_memory = int(config.trainer.n_gpus_per_node), float(config.hardware.device_memory_gib)
    plan, problems = inspect(config, settings, name, data_made_later=makes_data)
    said: list[str] = []
    for findings in (
        check_software(device, rollout, settings.env.name),
        check_machine(device, gpus, gpu_memory, Path(settings.run.work_dir)),
        () if makes_data else check_retriever(settings.env, problems),
        check_data(settings, made_later=makes_data),
        check_policy(Path(settings.policy.path), name, settings.policy.chat_template_kwargs),
        check_plan(plan, device) if plan else (),
    ):
        for finding in findings:
            said += [finding.found] if finding.level == "fail" else []
            yield finding
    for problem in problems:  # what else would stop `rsipo train`
        if not any(found in problem for found in said):
            yield Finding("preflight", "train", "fail", problem, "correct this setting")


def _panel(request: Request) -> str:
    """The panel that ``rsipo evaluate`` would play; that of an embedded run is called as its recipe."""
    recipe = EMBEDDED_RUNS[request.environment].recipe if request.model is None else ""
    return recipe if recipe in options("panel") else request.environment


def _given(request: Request, key: str) -> bool:
    return any(text.startswith(f"{key}=") for text in request.overrides)
