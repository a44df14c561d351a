"""The runs that need no model and no download: an embedded policy on data that is generated for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from rsipo.games import ensure_embedded_games
from rsipo.models import EMBEDDED_POLICY, EMBEDDED_SEARCH_POLICY
from rsipo.problems import UserError


@contextmanager
def _no_service(data: Path) -> Iterator[list[str]]:
    yield []


@dataclass(frozen=True, slots=True)
class EmbeddedRun:
    """The embedded run of one benchmark.

    Attributes:
        recipe: its file in ``config/recipe``.
        policy: folder of the shipped policy.
        name: of the run; further ones get a number.
        make_data: generates the data in a folder, or finds them there.
        service: runs, for the duration of the block, what the data need beside them; gives the overrides that say where.
        service_setting: the setting with which a user says that such a service is there already; empty without one.
    """

    recipe: str
    policy: Path
    name: str
    make_data: Callable[[Path], None]
    service: Callable[[Path], AbstractContextManager[list[str]]] = _no_service
    service_setting: str = ""

    @contextmanager
    def ready(
        self, data: Path, overrides: Sequence[str], *, make: bool = True, serve: bool = True
    ) -> Iterator[list[str]]:
        """The data in the folder ``data`` and their service for the block; gives the overrides that say where it is.

        What ``overrides`` (KEY=VALUE) name is the user's own: data elsewhere are not made, nor is a second service started.
        ``make`` False: the data are there. ``serve`` False: nothing will be played, so no service is needed.
        """
        given = {text.split("=", 1)[0] for text in overrides}
        if make and "env.data_root" not in given:
            self.make_data(data)
        wanted = serve and self.service_setting not in given
        with self.service(data) if wanted else nullcontext([]) as where:
            yield where


def make_search_data(folder: Path) -> None:
    """Generate the world of the embedded search run and index it, or find both already there."""
    from agent_system.environments.search.generator import generate
    from agent_system.retrieval.build import BuildRequest, build_index
    from agent_system.retrieval.types import IndexProblem

    try:
        data = generate(folder, seed=0)
        build_index(folder / "index", BuildRequest(corpus=folder / "corpus.jsonl", kind="bm25"))
    except (ValueError, OSError, IndexProblem) as error:
        raise UserError(str(error)) from error
    if data.status == "written":
        counts = f"{data.passages} passages, {sum(data.train.values())} training and {sum(data.test.values())} test questions"
        Console(soft_wrap=True).print(f"{counts} written in {folder}", markup=False)


@contextmanager
def retriever(folder: Path) -> Iterator[list[str]]:
    """The retriever of a generated world, on a free port, for the duration of the block."""
    from rsipo.retriever.process import RetrieverProcess

    with RetrieverProcess(folder / "index", ["--threads", "1"], start_deadline_s=120) as process:
        yield [f"env.retriever_urls=['{process.url}']"]


EMBEDDED_RUNS = {
    "alfworld": EmbeddedRun("embedded", EMBEDDED_POLICY, "rsipo-tiny-policy-alfworld", ensure_embedded_games),
    "search": EmbeddedRun(
        "search_embedded",
        EMBEDDED_SEARCH_POLICY,
        "rsipo-tiny-policy-search",
        make_search_data,
        retriever,
        "env.retriever_urls",
    ),
}
