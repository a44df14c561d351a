"""The real slice of the seven datasets where it lies beside the project, and retrievers that need no server."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agent_system.environments.base import Task
from agent_system.environments.search.index import content_sha256
from agent_system.environments.search.local_retriever import LocalRetriever
from agent_system.retrieval.types import Passage, RetrieverUnavailable


@dataclass
class FixedRetriever:
    """Answers every query with the same passages, or fails; a stand-in that remembers what it was asked."""

    passages: Sequence[Passage] = ()
    failing: bool = False
    queries: list[str] = field(default_factory=list)

    def search_sync(self, queries: Sequence[str], top_k: int | None = None) -> list[list[Passage]]:
        self.queries += queries
        if self.failing:
            raise RetrieverUnavailable("no answer from http://127.0.0.1:8000/retrieve")
        return [list(self.passages[:top_k]) for _ in queries]

    async def search(self, queries: Sequence[str], top_k: int | None = None) -> list[list[Passage]]:
        return self.search_sync(queries, top_k)

    async def aclose(self) -> None:
        pass


@pytest.fixture
def fixed_retriever() -> Callable[..., FixedRetriever]:
    return FixedRetriever


@pytest.fixture
def make_task() -> Callable[..., Task]:
    """A question as ``index.load`` makes it."""

    def make(question: str = "Who wrote Emma?", answers: Sequence[str] = ("Jane Austen",), source: str = "nq") -> Task:
        extra = {"question": question, "answers": tuple(answers), "split": "test"}
        return Task(f"{source}/test_0", source, "questions.jsonl#0", content_sha256(source, question, answers), extra)

    return make


@pytest.fixture(scope="session")
def search_data() -> Path:
    """The folder of the real slice."""
    for folder in Path(__file__).resolve().parents:
        if (found := folder.parent / "shared" / "data" / "search").is_dir():
            return found
    pytest.skip("the slice of the search datasets is not beside the project (shared/data/search)")


@pytest.fixture(scope="session")
def real_retriever(search_data: Path) -> LocalRetriever:
    """BM25 over the slice's 26,019 passages."""
    return LocalRetriever(search_data / "corpus" / "wiki-18-mini.jsonl.gz")


@pytest.fixture(scope="session")
def gold(search_data: Path) -> dict[tuple[str, str], set[str]]:
    """Gold passage ids by (dataset, question)."""
    lines = (search_data / "gold_test.jsonl").read_text(encoding="utf-8").splitlines()
    rows = map(json.loads, lines)
    return {(row["data_source"], row["question"]): set(row["gold_passage_ids"]) for row in rows}


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A byte-level tokenizer with a chat template: prompts here are read as text, not by a model."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        special_tokens=["<|endoftext|>", "<|im_end|>"], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    tokenizer.train_from_iterator(
        ["<think>x</think><search>y</search><answer>z</answer> information result Title"], trainer
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = "{% for message in messages %}{{ message.content }}<|im_end|>{% endfor %}"
    folder = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(folder)
    return str(folder)
