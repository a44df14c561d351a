"""What rooms are made of and what lies where: statistics of ALFWorld's own games, rounded by hand.

Names are ALFRED's kinds ("SinkBasin", "ButterKnife"). Whether a receptacle may hold an object at all is not decided
here but by the tables of the installed ``alfworld`` (:mod:`.package`); these numbers only weigh what is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

PLACE = "pick_and_place_simple"
LOOK = "look_at_obj_in_light"
CLEAN = "pick_clean_then_place_in_recep"
HEAT = "pick_heat_then_place_in_recep"
COOL = "pick_cool_then_place_in_recep"
TWO = "pick_two_obj_and_place"
TASK_TYPES = (PLACE, LOOK, CLEAN, HEAT, COOL, TWO)

SPLITS = ("train", "valid_seen", "valid_unseen")

# Only [a-z ]: TextWorld evaluates braces in a game's grammar as Python.
SENTENCES = {
    PLACE: ("put a {object} in {receptacle}", "put some {object} on {receptacle}"),
    LOOK: ("examine the {object} with the desklamp", "look at {object} under the desklamp"),
    CLEAN: ("put a clean {object} in {receptacle}", "clean some {object} and put it in {receptacle}"),
    HEAT: ("put a hot {object} in {receptacle}", "heat some {object} and put it in {receptacle}"),
    COOL: ("put a cool {object} in {receptacle}", "cool some {object} and put it in {receptacle}"),
    TWO: ("put two {object} in {receptacle}", "find two {object} and put them in {receptacle}"),
}


class Treatment(NamedTuple):
    """How an object must be treated before it is delivered."""

    verb: str
    appliance: str
    trait: str  # the objects fit for it, a name in alfworld's VAL_ACTION_OBJECTS
    result: str  # the predicate the goal asks for


TREATMENTS = {
    CLEAN: Treatment("clean", "SinkBasin", "Cleanable", "isClean"),
    HEAT: Treatment("heat", "Microwave", "Heatable", "isHot"),
    COOL: Treatment("cool", "Fridge", "Coolable", "isCool"),
}

# Rooms a task is set in; a room named twice is drawn twice as often.
TASK_ROOMS = {
    PLACE: ("kitchen", "living", "bed", "bath"),
    LOOK: ("bed", "living"),
    CLEAN: ("kitchen", "kitchen", "bath"),
    HEAT: ("kitchen",),
    COOL: ("kitchen",),
    TWO: ("kitchen", "living", "bed", "bath"),
}


class Count(NamedTuple):
    """How often a kind of receptacle is in a room, and in what number (triangular distribution)."""

    presence: float
    low: int = 1
    mode: int = 1
    high: int = 1


@dataclass(frozen=True)
class Room:
    """A kind of room.

    Attributes:
        first_number: number of its first scene, above ALFRED's floor plans so that nobody takes one for the other.
        core: kinds that are always there.
        receptacles: every kind the room may have.
        objects: fewest and most objects lying about in a room of full size.
    """

    first_number: int
    core: tuple[str, ...]
    receptacles: dict[str, Count]
    objects: tuple[int, int]


ROOMS = {
    "kitchen": Room(
        first_number=1000,
        core=("SinkBasin", "Fridge", "Microwave", "CounterTop"),
        receptacles={
            "Cabinet": Count(1, 4, 12, 24),
            "CoffeeMachine": Count(1),
            "CounterTop": Count(1, 1, 2, 4),
            "DiningTable": Count(0.54, 1, 1, 3),
            "Drawer": Count(0.96, 1, 4, 14),
            "Fridge": Count(1),
            "GarbageCan": Count(1),
            "Microwave": Count(1),
            "Shelf": Count(0.18, 3, 3, 3),
            "SideTable": Count(0.11),
            "SinkBasin": Count(1),
            "StoveBurner": Count(1, 4, 4, 6),
            "Toaster": Count(1),
        },
        objects=(37, 53),
    ),
    "living": Room(
        first_number=2000,
        core=("Sofa", "CoffeeTable"),
        receptacles={
            "ArmChair": Count(0.93, 1, 1, 3),
            "Cabinet": Count(0.14, 1, 4, 8),
            "CoffeeTable": Count(0.85, 1, 1, 2),
            "DiningTable": Count(0.5, 1, 1, 2),
            "Drawer": Count(0.79, 1, 4, 12),
            "Dresser": Count(0.36, 1, 1, 2),
            "GarbageCan": Count(1),
            "Ottoman": Count(0.14),
            "Safe": Count(0.07),
            "Shelf": Count(0.39, 1, 5, 14),
            "SideTable": Count(0.79, 1, 2, 5),
            "Sofa": Count(1, 1, 1, 2),
            "TVStand": Count(0.43),
        },
        objects=(16, 26),
    ),
    "bed": Room(
        first_number=3000,
        core=("Bed", "Desk"),
        receptacles={
            "ArmChair": Count(0.21, 1, 1, 3),
            "Bed": Count(1, 1, 1, 2),
            "Cabinet": Count(0.14, 1, 4, 4),
            "Desk": Count(0.75, 1, 1, 2),
            "DiningTable": Count(0.14),
            "Drawer": Count(0.96, 2, 4, 16),
            "Dresser": Count(0.46, 1, 1, 2),
            "GarbageCan": Count(1),
            "LaundryHamper": Count(0.29),
            "Safe": Count(0.18),
            "Shelf": Count(0.68, 1, 4, 12),
            "SideTable": Count(0.64, 1, 1, 2),
        },
        objects=(18, 27),
    ),
    "bath": Room(
        first_number=4000,
        core=("SinkBasin", "Toilet", "CounterTop"),
        receptacles={
            "BathtubBasin": Count(0.68),
            "Cabinet": Count(0.5, 2, 4, 9),
            "Cart": Count(0.07),
            "CounterTop": Count(0.9, 1, 1, 2),
            "Drawer": Count(0.54, 1, 4, 8),
            "GarbageCan": Count(1),
            "HandTowelHolder": Count(1, 1, 1, 3),
            "Shelf": Count(0.25, 1, 2, 4),
            "SideTable": Count(0.07),
            "SinkBasin": Count(1, 1, 2, 2),
            "Toilet": Count(1),
            "ToiletPaperHanger": Count(1),
            "TowelHolder": Count(1, 1, 1, 2),
        },
        objects=(12, 19),
    ),
}

ALWAYS_CLOSED = frozenset({"Fridge", "Microwave", "Safe"})
SOMETIMES_CLOSED = frozenset({"Cabinet", "Drawer"})
# Hold next to nothing, so small rooms do without.
DULL = frozenset({"Toaster", "TVStand", "LaundryHamper", "TowelHolder", "HandTowelHolder"})
# Never the place a task asks to put something in.
NEVER_A_GOAL = DULL | {"SinkBasin", "BathtubBasin"}


class Placement(NamedTuple):
    """Where kinds of objects lie in some rooms: a weight for each kind of receptacle."""

    rooms: tuple[str, ...]
    objects: tuple[str, ...]
    weights: dict[str, float]


# One row per group of kinds that lie alike; the weights read "kind weight kind weight ...".
_PLACEMENTS = (
    ("kitchen", "Apple Egg Potato Tomato",
     "CounterTop 4 Fridge 4 DiningTable 2 SinkBasin 1.5 Microwave 1.5 GarbageCan 1.5 SideTable 1"),
    ("kitchen", "Bread Lettuce",
     "CounterTop 5 DiningTable 3 Fridge 3 SinkBasin .5 SideTable 1 GarbageCan .2"),
    ("kitchen", "Fork Spoon Knife ButterKnife Spatula Ladle",
     "CounterTop 5 DiningTable 3 Drawer 3 Cabinet 1 SinkBasin 1 SideTable .5"),
    ("kitchen", "Mug Cup",
     "CounterTop 4 Cabinet 3 CoffeeMachine 2.5 Fridge 2.5 DiningTable 2 Microwave 1 SinkBasin 1 Shelf .5 SideTable .5"),
    ("kitchen", "Plate Bowl",
     "Cabinet 5 CounterTop 3 DiningTable 2 Fridge 1.5 Shelf .5 SinkBasin .3 SideTable .3"),
    ("kitchen", "Pot Pan Kettle",
     "StoveBurner 6 CounterTop 2 Cabinet 1 Fridge .4 DiningTable .5 Shelf .2"),
    ("kitchen", "SaltShaker PepperShaker",
     "Cabinet 4 CounterTop 4 Drawer 2 DiningTable 2 Shelf .5 SideTable .3"),
    ("kitchen", "DishSponge SoapBottle",
     "CounterTop 4 Cabinet 3 Drawer 2 DiningTable 2 SinkBasin 1 GarbageCan 1 Shelf .5"),
    ("kitchen", "WineBottle Glassbottle Vase Statue",
     "Cabinet 3 CounterTop 3 DiningTable 2.5 Shelf 2 GarbageCan .6 Fridge .5"),
    ("bath", "SoapBar Cloth DishSponge",
     "CounterTop 3 Toilet 2 Cabinet 2.5 BathtubBasin 2 SinkBasin 1.5 Drawer 2 GarbageCan .7 Shelf 1 Cart 1"
     " SideTable 1"),
    ("bath", "SoapBottle SprayBottle Candle TissueBox",
     "CounterTop 4 Toilet 3.5 Cabinet 2.5 GarbageCan 1.2 Drawer 1.2 Shelf 1 Cart 1 SideTable 1"),
    ("bath", "ToiletPaper",
     "CounterTop 3 Toilet 3 Cabinet 2 ToiletPaperHanger 1.5 GarbageCan 1 Drawer 1 Shelf 1"),
    ("bath", "Towel HandTowel",
     "TowelHolder 9 HandTowelHolder 9 CounterTop .3 Cabinet .2"),
    ("bed living", "Pillow",
     "Bed 8 Sofa 6 ArmChair 2 Ottoman 1"),
    ("bed living", "Laptop Book Newspaper",
     "Bed 5 Desk 2 CoffeeTable 2 Sofa 2 DiningTable 2 Dresser 1 ArmChair 1 SideTable 1 Drawer .7 Ottoman .5 Shelf .5"),
    ("bed living", "CellPhone CreditCard KeyChain Watch",
     "Drawer 3 Desk 2 SideTable 2 Dresser 1.5 Shelf 1.5 Bed 1.5 CoffeeTable 1.5 Sofa 1 DiningTable 1 ArmChair .7"
     " Safe .7 Ottoman .3"),
    ("living", "RemoteControl",
     "CoffeeTable 3 Sofa 3 SideTable 2 Dresser 1.5 DiningTable 1.5 Drawer 1.2 ArmChair 1 Ottoman 1"),
    ("living", "Vase Statue TissueBox Box Plate",
     "Shelf 4 CoffeeTable 3 DiningTable 2 SideTable 1.5 Sofa 1.5 Dresser 1 Cabinet 1 Drawer .5 TVStand .5"),
    ("bed", "Pen Pencil CD AlarmClock Mug Bowl",
     "Desk 3.5 Drawer 2.5 Shelf 3 SideTable 2.5 Dresser 2 DiningTable 1 GarbageCan .6 Safe .2"),
)  # fmt: skip


def _placement(rooms: str, objects: str, weights: str) -> Placement:
    words = weights.split()
    table = {kind: float(weight) for kind, weight in zip(words[::2], words[1::2], strict=True)}
    return Placement(tuple(rooms.split()), tuple(objects.split()), table)


PLACEMENTS = tuple(_placement(*row) for row in _PLACEMENTS)


class Fixture(NamedTuple):
    """Something that is seen but never taken."""

    chance: float
    rooms: tuple[str, ...]
    receptacles: tuple[str, ...]


LAMP = "DeskLamp"
FIXTURES = {
    "HousePlant": Fixture(
        0.4, ("kitchen", "living", "bed"), ("CounterTop", "CoffeeTable", "SideTable", "Desk", "DiningTable")
    ),
    "Television": Fixture(0.7, ("living",), ("TVStand", "Dresser")),
    LAMP: Fixture(0.5, ("bed", "living"), ("Desk", "SideTable", "Dresser", "Shelf", "CoffeeTable", "DiningTable")),
}
