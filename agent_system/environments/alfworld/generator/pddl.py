"""The PDDL text of a game.

All facts the engine needs are written, and only those: without ``canContain`` an object can silently never be put
down, without ``openable`` a door silently disappears, and without the static facts of the goal loading dies.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent_system.environments.alfworld.generator.package import Package
from agent_system.environments.alfworld.generator.planner import Goal, Thing
from agent_system.environments.alfworld.generator.scene import Receptacle
from agent_system.environments.alfworld.generator.tables import FIXTURES, LAMP, LOOK, TREATMENTS, TWO

# Named inside the domain's actions, so declared in every game.
_DOMAIN_RECEPTACLES = ("SinkBasin", "Microwave", "Fridge")
_DOMAIN_OBJECTS = ("Knife", "ButterKnife")
# No receptacle stands here: the agent starts "in the middle of a room" and is told what there is.
_START = "loc_bar_00"


def problem_text(
    name: str, goal: Goal, layout: Sequence[Receptacle], things: Sequence[Thing], package: Package, *, slicing: bool
) -> str:
    """The problem ``name`` in the domain ``alfred``, ASCII only, in a fixed order."""
    objects = "\n".join(f"  {line}" for line in _objects(layout, things))
    facts = "\n".join(f"  ({fact})" for fact in _facts(layout, things, package, slicing))
    return (
        f"(define (problem {name})\n(:domain alfred)\n(:objects\n{objects}\n)\n"
        f"(:init\n{facts}\n)\n(:goal (and\n  {_goal(goal)}\n))\n)\n"
    )


def _objects(layout: Sequence[Receptacle], things: Sequence[Thing]) -> list[str]:
    receptacle_kinds = sorted({receptacle.kind for receptacle in layout})
    object_kinds = sorted({thing.kind for thing in things})
    receptacle_kinds += [kind for kind in _DOMAIN_RECEPTACLES if kind not in receptacle_kinds]
    object_kinds += [kind for kind in _DOMAIN_OBJECTS if kind not in object_kinds]
    return [
        *(f"{kind}Type - rtype" for kind in receptacle_kinds),
        *(f"{kind}Type - otype" for kind in object_kinds),
        "agent1 - agent",
        *(f"{receptacle.id} - receptacle" for receptacle in layout),
        *(f"{thing.id} - object" for thing in things),
        *(f"{location} - location" for location in [_START, *sorted({r.location for r in layout})]),
    ]


def _facts(layout: Sequence[Receptacle], things: Sequence[Thing], package: Package, slicing: bool) -> list[str]:
    facts = [f"atLocation agent1 {_START}"]
    for receptacle in layout:
        facts += [
            f"receptacleType {receptacle.id} {receptacle.kind}Type",
            f"receptacleAtLocation {receptacle.id} {receptacle.location}",
        ]
        facts += [f"openable {receptacle.id}"] * receptacle.door
    facts += [
        f"canContain {receptacle}Type {thing}Type"
        for receptacle in sorted({receptacle.kind for receptacle in layout})
        for thing in sorted({thing.kind for thing in things})
        if package.can_contain(receptacle, thing)
    ]
    traits = ["Cleanable", "Heatable", "Coolable", "Toggleable"] + ["Sliceable"] * slicing
    for thing in things:
        facts += [
            f"objectType {thing.id} {thing.kind}Type",
            f"inReceptacle {thing.id} {thing.at.id}",
            f"objectAtLocation {thing.id} {thing.at.location}",
        ]
        facts += [f"pickupable {thing.id}"] * (thing.kind not in FIXTURES)
        facts += [f"isReceptacleObject {thing.id}"] * (thing.kind in package.bowls)
        facts += [f"{trait.lower()} {thing.id}" for trait in traits if package.is_fit(thing.kind, trait)]
    return facts


def _goal(goal: Goal) -> str:
    if goal.task_type == LOOK:
        return (
            "(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and "
            f"(objectType ?ot {LAMP}Type) (toggleable ?ot) (isToggled ?ot) "
            "(receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))\n"
            f"  (exists (?o - object ?a - agent) (and (objectType ?o {goal.thing}Type) (holds ?a ?o)))"
        )
    wanted = f"(objectType ?o {goal.thing}Type) (receptacleType ?r {goal.target}Type) (inReceptacle ?o ?r)"
    if goal.task_type == TWO:
        wanted += f" (exists (?p - object) (and (not (= ?o ?p)) (objectType ?p {goal.thing}Type) (inReceptacle ?p ?r)))"
    elif treatment := TREATMENTS.get(goal.task_type):
        wanted += f" ({treatment.trait.lower()} ?o) ({treatment.result} ?o)"
    return f"(exists (?r - receptacle) (exists (?o - object) (and {wanted})))"
