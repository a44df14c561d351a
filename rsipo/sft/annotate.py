"""The stage between trajectories and samples: ask for every analysis, and write what came back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from agent_system.files import file_sha256
from rsipo.problems import UserError
from rsipo.record_lines import read_json, read_records, write_records
from rsipo.searchdata.files import write_json
from rsipo.sft.annotations import Advance, OfflineAnnotator, Outcome, Question, annotation, ask, ask_endpoint, questions
from rsipo.sft.endpoint import Endpoint
from rsipo.sft.layout import SftFiles
from rsipo.sft.setup import Setup

AnnotatorKind = Literal["external", "offline"]


@dataclass(frozen=True, slots=True)
class Annotated:
    """What the stage came to: records written, those of them that can be used, trajectories left without an answer."""

    written: int
    valid: int
    missing: int


def annotate(
    setup: Setup,
    files: SftFiles,
    endpoint: Endpoint | None,
    *,
    allow_missing: bool,
    progress: Callable[[str, int, int], None],
) -> Annotated:
    """Have every trajectory analysed and write the annotations.

    Args:
        endpoint: of the external LLM; None: the offline templates.
        allow_missing: leave out trajectories whose request had no response, instead of stopping.
        progress: called with a stage's name, the number done and the number of all.

    Raises:
        UserError: the budget is spent, or requests had no response; what was answered is kept, and the same command goes on.
    """
    total = sum(1 for _ in read_records(files.trajectories, "run rsipo sft collect"))
    asked: list[Question] = []
    for question in questions(setup, files):
        asked.append(question)
        progress("prompts", len(asked), total)
    if not asked:
        raise UserError(
            f"{files.trajectories} holds no trajectory with a turn; look at the rollouts in {files.rollouts}"
        )
    name = endpoint.model if endpoint else OfflineAnnotator().name
    how = _how(setup, endpoint, name)
    _begin(files, how)
    advance = partial(progress, "annotations")
    outcome = asyncio.run(_ask(endpoint, files, asked, advance))
    _check_complete(outcome, asked, endpoint, allow_missing)
    gold = {row["task_id"]: row.get("answers", []) for row in read_records(files.tasks, "run rsipo sft sample")}
    rows = [
        annotation(question, answer, name, setup, gold)
        for question in asked
        if (answer := outcome.answers.get(question.record["trajectory_id"])) is not None
    ]
    write_records(files.annotations, rows)
    hashes = {path.name: file_sha256(path) for path in (files.trajectories, files.annotations)}
    write_json(files.annotating, {**how, "without_annotation": sum(outcome.none.values()), "sha256": hashes})
    return Annotated(len(rows), sum(row["parse_ok"] for row in rows), len(asked) - len(rows))


async def _ask(endpoint: Endpoint | None, files: SftFiles, asked: list[Question], advance: Advance) -> Outcome:
    if endpoint is None:
        return await ask(OfflineAnnotator(), asked, advance)
    return await ask_endpoint(endpoint, files, asked, advance)


def _check_complete(outcome: Outcome, asked: list[Question], endpoint: Endpoint | None, allow_missing: bool) -> None:
    have, all_of_them = len(outcome.answers), len(asked)
    if outcome.budget is not None:
        raise UserError(
            f"{have} of {all_of_them} trajectories are annotated: {outcome.budget}; raise RSIPO_ANNOTATOR_BUDGET_TOKENS or "
            "RSIPO_ANNOTATOR_BUDGET_MONEY, and the same command goes on with --resume (RESUME=true)"
        )
    if outcome.none and (not allow_missing or not have):
        (reason, _), *_ = outcome.none.most_common(1)
        raise UserError(
            f"{all_of_them - have} of {all_of_them} requests had no response, most often: {reason}; the same command with "
            "--resume (RESUME=true) asks again, and with --allow-missing leaves them out"
        )


def _how(setup: Setup, endpoint: Endpoint | None, name: str) -> dict[str, Any]:
    """Who annotates, and how; all that decides the requests besides the trajectories."""
    skill = setup.settings.skill
    return {
        "benchmark": setup.benchmark,
        "annotator": name,
        "kind": "external" if endpoint else "offline",
        "sampling": endpoint.model_dump(include={"temperature", "max_tokens", "extra"}) if endpoint else None,
        "prompt_profile": skill.prompt_profile,
        "repeat_format": skill.repeat_format,
        "max_prompt_tokens": setup.max_prompt_tokens,
        "min_words": skill.min_words,
        "reject_leaks": skill.reject_leaks,
    }


def _begin(files: SftFiles, how: dict[str, Any]) -> None:
    """Note who annotates, or make sure that it is who began: another one would ask, and cost, everything again."""
    if not files.annotating.exists():
        write_json(files.annotating, how)
        return
    begun = read_json(files.annotating, "remove it")
    for key, value in how.items():
        if begun.get(key) != value:
            raise UserError(
                f"{files.root} was annotated with {key} {begun.get(key)!r}, now it is {value!r}; go on as it was begun, or "
                f"remove {files.annotating} to annotate everything anew"
            )
