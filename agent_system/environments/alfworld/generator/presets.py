"""Sizes of games and the knobs that tune their difficulty."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError


def _pair(value: Any) -> Any:
    """A single number stands for a range that holds only it."""
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


def _ordered(pair: tuple[int, int]) -> tuple[int, int]:
    if pair[0] > pair[1]:
        raise ValueError(f"the low end {pair[0]} is above the high end {pair[1]}")
    return pair


def _few_scenes(pair: tuple[int, int]) -> tuple[int, int]:
    if sum(pair) > 1000:
        raise ValueError("a kind of room has at most 1000 scenes in all")
    return pair


Chance = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Receptacles = Annotated[int, Field(ge=3, le=60)]
Objects = Annotated[int, Field(ge=1, le=100)]
Targets = Annotated[int, Field(ge=1, le=8)]
Scenes = Annotated[int, Field(ge=1)]


class Preset(BaseModel):
    """Size and difficulty of a game. Every field but ``name`` is a knob.

    The number of receptacles moves the difficulty (and the cost of a step) most, then the task type, then the number
    of copies of the sought object, then the distractors; ``hide`` only tells policies apart that do not open doors.

    Attributes:
        name: the name of the size.
        receptacles: (fewest, most) receptacles; None: every kind of the room, as in ALFWorld's own rooms.
        objects: (fewest, most) objects lying about, targets included; None: the room's own range.
        targets: (fewest, most) copies of the sought object; at least two are made for ``pick_two_obj_and_place``.
        copies: most copies of one kind of distractor.
        hide: chance that a copy of the sought object lies behind a door; None: as the placement weights have it.
        openable: share of cabinets and drawers that have a door.
        shared: chance that a receptacle stands where its neighbour stands.
        slicing: whether food can be sliced (adds actions that no task needs).
        scenes: number of room layouts for train and valid_seen, and of others for valid_unseen.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    receptacles: Annotated[tuple[Receptacles, Receptacles], BeforeValidator(_pair), AfterValidator(_ordered)] | None
    objects: Annotated[tuple[Objects, Objects], BeforeValidator(_pair), AfterValidator(_ordered)] | None
    targets: Annotated[tuple[Targets, Targets], BeforeValidator(_pair), AfterValidator(_ordered)]
    copies: Annotated[int, Field(ge=1, le=10)]
    hide: Chance | None = None
    openable: Chance = 0.83
    shared: Chance = 0.0
    slicing: bool = False
    scenes: Annotated[tuple[Scenes, Scenes], AfterValidator(_few_scenes)] = (108, 12)

    def settings(self) -> str:
        """The knobs as canonical JSON: what a game depends on besides its seed."""
        return json.dumps(self.model_dump(mode="json", exclude={"name"}), sort_keys=True)


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(name="micro", receptacles=(3, 4), objects=(2, 3), targets=(1, 1), copies=1),
        Preset(name="tiny", receptacles=(5, 6), objects=(4, 8), targets=(1, 2), copies=2),
        Preset(name="small", receptacles=(8, 12), objects=(10, 18), targets=(1, 2), copies=2, slicing=True),
        Preset(name="real", receptacles=None, objects=None, targets=(1, 3), copies=3, shared=0.1, slicing=True),
    )
}
KNOBS = tuple(name for name in Preset.model_fields if name != "name")


def one_of(what: str, value: str, known: Iterable[str]) -> str:
    """``value`` if it is known; else a ValueError that names the nearest known one."""
    known = tuple(known)
    if value in known:
        return value
    near = difflib.get_close_matches(str(value), known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown {what} {value!r}{hint} (known: {', '.join(known)})")


def resolve_preset(size: str, knobs: Mapping[str, Any] | None = None) -> Preset:
    """The preset of this name with some knobs turned.

    Raises:
        ValueError: unknown size or knob (the nearest known name is given), or a value out of its range.
    """
    preset = PRESETS[one_of("size", size, PRESETS)]
    knobs = dict(knobs or {})
    for name in knobs:
        one_of("knob", name, KNOBS)
    try:
        return Preset.model_validate(preset.model_dump() | knobs)
    except ValidationError as error:
        first = error.errors()[0]
        knob = str(first["loc"][0])
        raise ValueError(f"knob {knob}={knobs[knob]!r}: {first['msg'].removeprefix('Value error, ')}") from None


def parse_knobs(items: Iterable[str]) -> dict[str, Any]:
    """Command-line knobs, ``hide=1.0`` or ``objects=[3,5]``, as a mapping; values are JSON.

    Raises:
        ValueError: not of the form NAME=VALUE, or the value is not JSON.
    """
    knobs = {}
    for item in items:
        name, _, value = item.partition("=")
        try:
            knobs[name.strip()] = json.loads(value)
        except json.JSONDecodeError:
            remedy = "write NAME=VALUE, e.g. hide=1.0 or 'objects=[3,5]' or receptacles=null"
            raise ValueError(f"cannot read knob {item!r}: {remedy}") from None
    return knobs
