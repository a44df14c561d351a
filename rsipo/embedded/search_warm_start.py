"""The warm start of the search policy: generated worlds, scripted demonstrations, a tokenizer, training, a checkpoint."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from agent_system.environments.search.env import SearchEnv
from agent_system.environments.search.generator import generate
from agent_system.environments.search.local_retriever import LocalRetriever
from agent_system.environments.search.spec import SearchSpec
from rsipo.embedded.demonstrations import Demonstration
from rsipo.embedded.making import ReportProgress, refuse_a_model, save_policy, train_policy, versions, write_provenance
from rsipo.embedded.play import Policy
from rsipo.embedded.search_demonstrations import demonstrate_questions
from rsipo.embedded.search_play import SearchMeasurement, measure_search
from rsipo.embedded.search_tokenizer import train_search_tokenizer
from rsipo.embedded.train import Recipe

_TOKENIZER_SAMPLES = 5_000
_BATCH_TOKENS = 1_000  # samples are half as long as those of games
_FIRST_WORLD = 1_000  # the embedded run has world 0, which no demonstration may show


def tiny_search_spec(data: Path) -> SearchSpec:
    """The settings the policy is made for: compact prompts over plain observations."""
    return SearchSpec(
        str(data / "train.jsonl"),
        str(data / "test.jsonl"),
        ("http://127.0.0.1:8000",),
        observation_form="plain",
        prompt_profile="compact",
    )


@dataclass(frozen=True, slots=True)
class LocalWorld:
    """A generated world with slots that need no server."""

    spec: SearchSpec
    retriever: LocalRetriever

    @classmethod
    def make(cls, folder: Path, *, seed: int, train: int = 480, test: int = 60) -> LocalWorld:
        generate(folder, seed=seed, train=train, test=test)
        return cls(tiny_search_spec(folder), LocalRetriever(folder / "corpus.jsonl"))

    def environment(self) -> SearchEnv:
        """A new slot."""
        return SearchEnv(self.retriever, self.spec.top_k, self.spec.max_turns, self.spec.observation_form)


@dataclass(frozen=True, slots=True)
class SearchProvenance:
    """How a checkpoint was made and how it plays; see ``warm_start.Provenance``."""

    command: str
    demonstrations: int
    recipe: Recipe
    last_response_loss: float
    seconds: int
    cpu_seconds: int
    measured_on: str
    measured: SearchMeasurement
    versions: dict[str, str]


def warm_start_search(
    out: Path,
    *,
    seed: int = 0,
    worlds: int = 12,
    tokens: int = 8_000_000,
    threads: int = 1,
    progress: ReportProgress = lambda stage, done, total: None,
) -> SearchProvenance:
    """Make the search policy from nothing but the installed packages.

    Writes a Hugging Face model folder (bfloat16) with a ``provenance.json``.

    Args:
        out: the folder to make; must not hold a model already.
        seed: of the worlds, the demonstrations and the training.
        worlds: generated worlds to demonstrate in, each with 480 questions.
        tokens: training tokens in all.
        threads: threads for the training.
        progress: called with (stage, done, total).

    Raises:
        FileExistsError: ``out`` already holds a model.
    """
    refuse_a_model(out)
    recipe = Recipe(tokens=tokens, batch_tokens=_BATCH_TOKENS)
    started, cpu_started = time.monotonic(), time.process_time()
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="rsipo-warm-start-") as folder:
        demonstrations: list[Demonstration] = []
        for number in range(worlds):
            world_seed = _FIRST_WORLD * (seed + 1) + number
            world = LocalWorld.make(Path(folder) / str(world_seed), seed=world_seed)
            tasks = world.spec.tasks("train")
            demonstrations += demonstrate_questions(world.environment(), world.spec, tasks, seed=seed)
            progress("demonstrate", number + 1, worlds)
        policy, last = train_policy(
            demonstrations,
            train_search_tokenizer,
            recipe,
            tokenizer_samples=_TOKENIZER_SAMPLES,
            seed=seed,
            progress=progress,
        )
        save_policy(policy, out)
        seconds, cpu_seconds = time.monotonic() - started, time.process_time() - cpu_started
        unseen = LocalWorld.make(Path(folder) / "unseen", seed=0)
        measured = measure_search(
            Policy.load(out), unseen.spec, unseen.environment, unseen.spec.tasks("test") * 2, seed=seed
        )
        progress("measure", 1, 1)
    made = SearchProvenance(
        command=f"rsipo warm-start --env search --seed {seed} --million-tokens {tokens / 1e6:g} --threads {threads}",
        demonstrations=len(demonstrations),
        recipe=recipe,
        last_response_loss=round(last.response_loss, 4),
        seconds=round(seconds),
        cpu_seconds=round(cpu_seconds),
        measured_on="60 test questions of generated world 0, each twice, at temperature 1.0; skills at 0.3",
        measured=measured,
        versions=versions(),
    )
    write_provenance(out, made)
    return made
