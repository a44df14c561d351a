"""Rooms: which receptacles there are and where they stand. Many games share a scene, as in ALFWorld."""

from __future__ import annotations

import functools
import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from agent_system.environments.alfworld.generator.presets import Preset
from agent_system.environments.alfworld.generator.tables import ALWAYS_CLOSED, DULL, ROOMS, SOMETIMES_CLOSED, Room

GENERATOR_VERSION = 1  # part of every seed: raise it when the same seed no longer gives the same games
_REDRAWS = 200


class Receptacle(NamedTuple):
    """A piece of furniture: PDDL id, kind, PDDL location, whether it has a door (closed at first), displayed name."""

    id: str
    kind: str
    location: str
    door: bool
    name: str


def name_all(kinds: Sequence[str], rng: random.Random) -> list[tuple[str, str]]:
    """(PDDL id, displayed name) for a list of kinds; the numbers within a kind are in random order.

    Follows ALFWorld's naming rule. It shows what stands before the first ``_bar_`` and a number: ids of a kind are
    sorted and numbered *downwards*. "basin" anywhere in an id appends "basin" to the name, so it must not stand
    before ``_bar_`` as well. Numbers are padded so that sorting is numeric.
    """
    total = Counter(kinds)
    order = {kind: rng.sample(range(1, total[kind] + 1), total[kind]) for kind in sorted(total)}
    named = []
    for kind in kinds:
        number = order[kind].pop()
        head, tail = (kind.removesuffix("Basin"), f"_bar_{kind}") if kind.endswith("Basin") else (kind, "")
        named.append((f"{head}_bar_{number:02d}{tail}", f"{kind.lower()} {total[kind] + 1 - number}"))
    return named


@functools.lru_cache(maxsize=4096)
def scene(room: str, index: int, preset: Preset) -> tuple[Receptacle, ...]:
    """Scene ``index`` of a kind of room, a pure function of its arguments.

    The first ``preset.scenes[0]`` scenes serve train and valid_seen, the next ``preset.scenes[1]`` valid_unseen. A
    layout belongs to one side by its hash, so no unseen room looks like a seen one. Only where a room has too few
    layouts (micro kitchens have five) a scene may fall back to a layout of the other side.
    """
    shape = f"{preset.receptacles}/{preset.openable}/{preset.shared}"  # other knobs leave the rooms as they are
    rng = random.Random(f"rsipo/scene/{GENERATOR_VERSION}/{shape}/{room}/{index}")
    for _ in range(_REDRAWS):
        layout = _draw(ROOMS[room], preset, rng)
        look = repr(sorted((r.name, r.location, r.door) for r in layout))
        if (hashlib.sha256(look.encode()).digest()[0] % 8 == 0) == (index >= preset.scenes[0]):
            break
    return layout


def _draw(room: Room, preset: Preset, rng: random.Random) -> tuple[Receptacle, ...]:
    kinds = sorted(_full_room(room, rng) if preset.receptacles is None else _small_room(room, preset.receptacles, rng))
    layout: list[Receptacle] = []
    place = 0
    for kind, (identifier, name) in zip(kinds, name_all(kinds, rng), strict=True):
        place += not layout or rng.random() >= preset.shared
        door = kind in ALWAYS_CLOSED or (kind in SOMETIMES_CLOSED and rng.random() < preset.openable)
        layout.append(Receptacle(identifier, kind, f"loc_bar_{place:02d}", door, name))
    return tuple(layout)


def _full_room(room: Room, rng: random.Random) -> list[str]:
    kinds: list[str] = []
    for kind, count in room.receptacles.items():
        if kind in room.core or rng.random() < count.presence:
            number = int(rng.triangular(count.low, count.high + 1, count.mode + 0.5))
            kinds += [kind] * min(count.high, number)
    return kinds


def _small_room(room: Room, size_range: tuple[int, int], rng: random.Random) -> list[str]:
    size = rng.randint(*size_range)
    kinds = rng.sample(room.core, min(size, len(room.core)))
    others = [kind for kind in room.receptacles if kind not in DULL and kind not in kinds]
    weights = [room.receptacles[kind].presence for kind in others]
    most = len(kinds) + sum(room.receptacles[kind].high for kind in others)
    while len(kinds) < min(size, most):
        kind = rng.choices(others, weights)[0]
        if kinds.count(kind) < room.receptacles[kind].high:
            kinds.append(kind)
    return kinds
