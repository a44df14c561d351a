from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_system.environments.alfworld.engine import Frame, GameEngine
from agent_system.environments.alfworld.translation import TranslationCache
from agent_system.environments.base import Task


@pytest.fixture
def load(tasks: list[Task]) -> Callable[[TranslationCache], Frame]:
    game = json.loads(Path(tasks[0].location).read_text())
    return lambda cache: GameEngine("fast", cache).load(game, "game")


def counts(cache: TranslationCache) -> tuple[int, int]:
    return cache.misses, cache.disk_hits


def test_memory_then_disk_then_translator(load: Callable[[TranslationCache], Frame], tmp_path: Path) -> None:
    cache = TranslationCache(tmp_path)
    first = load(cache)
    assert load(cache) == first
    assert counts(cache) == (1, 0)
    again = TranslationCache(tmp_path)
    assert load(again) == first
    assert counts(again) == (0, 1)


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "other", "foreign"])
def test_a_corrupt_file_is_translated_again(
    damage: str, load: Callable[[TranslationCache], Frame], tmp_path: Path
) -> None:
    first = load(TranslationCache(tmp_path))
    (path,) = tmp_path.rglob("*.json.z")
    good = path.read_bytes()
    middle = len(good) // 2
    path.write_bytes(
        {
            "truncate": good[:middle],
            "flip": good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :],
            "empty": b"",
            "other": b"not a cache file",
            "foreign": zlib.compress(b'{"key": "of another game"}'),
        }[damage]
    )
    cache = TranslationCache(tmp_path)
    assert load(cache) == first
    assert counts(cache) == (1, 0)
    assert path.read_bytes() == good
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_an_unwritable_folder_costs_only_time(load: Callable[[TranslationCache], Frame], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    cache = TranslationCache(tmp_path / "cache")
    assert load(cache).commands
    assert counts(cache) == (1, 0)


def test_memory_holds_the_most_recent(tasks: list[Task]) -> None:
    games = [json.loads(Path(task.location).read_text()) for task in tasks[:3]]
    cache = TranslationCache(capacity=2)
    engine = GameEngine("fast", cache)
    for number in (0, 1, 0, 2, 0, 1):
        engine.load(games[number], "game")
    assert cache.misses == 4  # 0, 1, 2, and 1 once more
