"""Straightforward plans: fetch, treat, deliver. The shortest becomes a game's walkthrough."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from agent_system.environments.alfworld.generator.scene import Receptacle
from agent_system.environments.alfworld.generator.tables import LAMP, LOOK, TREATMENTS, TWO


class Thing(NamedTuple):
    """An object in a room: PDDL id, kind, displayed name, and the receptacle it lies in at the start."""

    id: str
    kind: str
    name: str
    at: Receptacle


class Goal(NamedTuple):
    """A task: its type, the kind of object sought and the kind of receptacle it must get to (the lamp to look with)."""

    task_type: str
    thing: str
    target: str


class _Player:
    """Writes down the commands of a walk through the room, skipping those that are not needed."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self._location = ""
        self._opened: set[str] = set()

    def visit(self, receptacle: Receptacle, *, inside: bool = True) -> None:
        # Receptacles may share a location: there, going to the second is not admissible.
        if receptacle.location != self._location:
            self.commands.append(f"go to {receptacle.name}")
            self._location = receptacle.location
        if inside and receptacle.door and receptacle.id not in self._opened:
            self.commands.append(f"open {receptacle.name}")
            self._opened.add(receptacle.id)


def shortest_plan(goal: Goal, layout: Sequence[Receptacle], things: Sequence[Thing]) -> list[str]:
    """The shortest plan over all choices of copies and targets, ties broken alphabetically."""
    copies = [thing for thing in things if thing.kind == goal.thing]
    lamps = [thing for thing in things if thing.kind == LAMP]
    if goal.task_type == LOOK:
        targets = [lamp.at for lamp in lamps]
    else:
        targets = [receptacle for receptacle in layout if receptacle.kind == goal.target]
    groups = itertools.permutations(copies, 2 if goal.task_type == TWO else 1)
    plans = (_plan(goal, group, target, layout, lamps) for group in groups for target in targets)
    return min(plans, key=lambda plan: (len(plan), plan))


def _plan(
    goal: Goal, group: Sequence[Thing], target: Receptacle, layout: Sequence[Receptacle], lamps: Sequence[Thing]
) -> list[str]:
    player = _Player()
    for thing in group:
        player.visit(thing.at)
        player.commands.append(f"take {thing.name} from {thing.at.name}")
        if treatment := TREATMENTS.get(goal.task_type):
            appliance = next(receptacle for receptacle in layout if receptacle.kind == treatment.appliance)
            player.visit(appliance, inside=False)  # the engine lets a closed microwave heat
            player.commands.append(f"{treatment.verb} {thing.name} with {appliance.name}")
        player.visit(target, inside=goal.task_type != LOOK)
        if goal.task_type == LOOK:
            player.commands.append(f"use {lamps[0].name}")
        else:
            player.commands.append(f"move {thing.name} to {target.name}")
    return player.commands
