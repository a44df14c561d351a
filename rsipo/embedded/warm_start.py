"""The warm start: generated games, scripted demonstrations, a tokenizer, supervised training, a measured checkpoint."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

from agent_system.environments.alfworld.generator import generate_games
from agent_system.environments.alfworld.spec import AlfworldSpec
from agent_system.environments.base import Task
from rsipo.embedded.demonstrations import Demonstration, demonstrate
from rsipo.embedded.making import ReportProgress, refuse_a_model, save_policy, train_policy, versions, write_provenance
from rsipo.embedded.play import Measurement, Policy, measure
from rsipo.embedded.tokenizer import train_tokenizer
from rsipo.embedded.train import Recipe

_TOKENIZER_SAMPLES = 20_000
_CHUNK = 20


@dataclass(frozen=True, slots=True)
class Games:
    """How many generated games to demonstrate of each size, and how many unseen ``tiny`` games to measure on."""

    tiny: int = 600
    micro: int = 400
    held_out: int = 60


def tiny_spec(data_root: Path) -> AlfworldSpec:
    """The settings the embedded policy is made for: short episodes, compact prompts, two turns of history."""
    return AlfworldSpec(str(data_root), max_turns=12, history_length=2, prompt_profile="compact")


@dataclass(frozen=True, slots=True)
class Provenance:
    """How a checkpoint was made and how it plays; the content of ``provenance.json``.

    ``seconds`` is wall time up to the saved checkpoint; ``last_response_loss`` in nats per token, of the last batch.
    """

    command: str
    demonstrations: int
    recipe: Recipe
    last_response_loss: float
    seconds: int
    measured_on: str
    measured: Measurement
    versions: dict[str, str]


def warm_start(
    out: Path,
    *,
    seed: int = 0,
    games: Games | None = None,
    tokens: int = 10_000_000,
    threads: int = 1,
    workers: int | None = None,
    progress: ReportProgress = lambda stage, done, total: None,
) -> Provenance:
    """Make an embedded policy from nothing but the installed packages.

    Writes a Hugging Face model folder (bfloat16) with a ``provenance.json`` that says how it was made and how it
    plays. Takes about 5 minutes of CPU time for the demonstrations and, on an idle core, 10 for the training.

    Args:
        out: the folder to make; must not hold a model already.
        seed: of the games, the demonstrations and the training.
        games: numbers of games.
        tokens: training tokens in all.
        threads: threads for the training. Fewer than the idle cores, never more: they wait for each other.
        workers: processes for the demonstrations; None means as many as ``threads``.
        progress: called with (stage, done, total).

    Raises:
        FileExistsError: ``out`` already holds a model.
    """
    refuse_a_model(out)
    games = games or Games()
    recipe = Recipe(tokens=tokens)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rsipo-warm-start-") as folder:
        roots = _generate(Path(folder), games, seed, progress)
        demonstrations = _demonstrate(roots, seed, workers or threads, progress)
        torch.set_num_threads(threads)
        policy, last = train_policy(
            demonstrations,
            train_tokenizer,
            recipe,
            tokenizer_samples=_TOKENIZER_SAMPLES,
            seed=seed,
            progress=progress,
        )
        save_policy(policy, out)
        seconds = round(time.monotonic() - started)
        spec = tiny_spec(roots["tiny"])
        measured = measure(Policy.load(out), spec, spec.tasks("valid_unseen"), seed=seed)
        progress("measure", 1, 1)
    made = Provenance(
        command=f"rsipo warm-start --seed {seed} --million-tokens {tokens / 1e6:g} --threads {threads}",
        demonstrations=len(demonstrations),
        recipe=recipe,
        last_response_loss=round(last.response_loss, 4),
        seconds=seconds,
        measured_on=f"{games.held_out} generated tiny games of split valid_unseen, seed {seed}, temperature 1.0",
        measured=measured,
        versions=versions(),
    )
    write_provenance(out, made)
    return made


def _generate(folder: Path, games: Games, seed: int, progress: ReportProgress) -> dict[str, Path]:
    """Training games of both sizes and held-out tiny ones; returns the data root of each size."""
    wanted = [("tiny", "train", games.tiny), ("micro", "train", games.micro), ("tiny", "valid_unseen", games.held_out)]
    roots = {}
    for size, split, count in wanted:
        if count > 0:
            roots[size] = folder / size
            report = partial(progress, f"generate {size} {split}")
            generate_games(roots[size], split=split, count=count, size=size, seed=seed, progress=report)
    return roots


def _demonstrate(roots: dict[str, Path], seed: int, workers: int, progress: ReportProgress) -> list[Demonstration]:
    """All demonstrations; the same for any number of workers, because each depends on its own game only."""
    jobs = []
    for root in roots.values():
        tasks = tiny_spec(root).tasks("train")
        jobs += [(root, tasks[start : start + _CHUNK], seed) for start in range(0, len(tasks), _CHUNK)]
    found: list[Demonstration] = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for done, part in enumerate(pool.map(_demonstrate_chunk, *zip(*jobs, strict=True)), start=1):
            found += part
            progress("demonstrate", done, len(jobs))
    return found


def _demonstrate_chunk(root: Path, tasks: Sequence[Task], seed: int) -> list[Demonstration]:
    spec = tiny_spec(root)
    return list(demonstrate(spec.make(), spec, tasks, seed=seed))
