"""A small interpreter of ALFWorld's games: replays commands on a PDDL problem without TextWorld or Fast Downward.

It shares no code with the planner or the engine, so a walkthrough that wins here has been checked independently of
both. It knows the nine actions that change the state (go to, open, close, take, move, clean, heat, cool, use) and
slice, as the domain ``alfred`` defines them, and the naming rule of ALFWorld's commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from agent_system.environments.alfworld.generator.problem import Expression, displayed_names, read_problem, typed_list

Binding: TypeAlias = dict[str, str]

# The groups are the verb and the names of what it is done to; the last pattern changes nothing.
_COMMANDS = tuple(
    map(
        re.compile,
        (
            r"(go to|open|close|use) (.+)",
            r"(take) (.+) from (.+)",
            r"(move) (.+) to (.+)",
            r"(clean|heat|cool|slice) (.+) with (.+)",
            r"(look|inventory|help|examine .+)",
        ),
    )
)
_TREATMENTS = {  # verb -> (the object must be, appliance, becomes, ceases to be)
    "clean": ("cleanable", "sinkbasintype", "isclean", None),
    "heat": ("heatable", "microwavetype", "ishot", "iscool"),
    "cool": ("coolable", "fridgetype", "iscool", "ishot"),
}


class PlanError(ValueError):
    """A command that the game would refuse, or a plan that does not win. The message names the command."""


class World:
    """The state of a game, from the text of its problem.

    Raises:
        ValueError: the text is not a problem of the domain ``alfred``.
    """

    def __init__(self, text: str) -> None:
        problem = read_problem(text)
        self._goal = problem.goal
        self._facts: dict[str, set[tuple[str, ...]]] = {}
        for predicate, *arguments in problem.facts:
            self._set(predicate, *arguments)
        self._ids = {name: identifier for identifier, name in displayed_names(problem.types).items()}
        agents = [identifier for identifier, kind in problem.types.items() if kind == "agent"]
        if len(agents) != 1:
            raise ValueError(f"the problem declares {len(agents)} agents, expected one")
        self._agent = agents[0]

    def won(self) -> bool:
        """Whether the goal holds."""
        return any(True for _ in self._satisfy(self._goal, {}))

    def step(self, command: str) -> None:
        """Carry out one command. Raises PlanError when the game would answer "Nothing happens."."""
        verb, names = _read_command(command)
        try:
            ids = [self._ids[name] for name in names]
        except KeyError as error:
            raise PlanError(f"{command!r}: there is no {error.args[0]}") from None
        if not self._act(verb, ids):
            raise PlanError(f"{command!r} is not possible then")

    def _act(self, verb: str, ids: Sequence[str]) -> bool:
        if verb == "go to":
            return self._go(*ids)
        if verb in ("open", "close"):
            return self._turn(*ids, opened=verb == "open")
        if verb == "take":
            return self._take(*ids)
        if verb == "move":
            return self._move(*ids)
        if verb in _TREATMENTS:
            return self._treat(verb, *ids)
        if verb == "use":
            return self._use(*ids)
        if verb == "slice":
            return self._slice(*ids)
        return True

    def _go(self, receptacle: str) -> bool:
        here, there = self._location(), self._value("receptacleatlocation", receptacle)
        if there is None or there == here:
            return False
        self._drop("atlocation", self._agent, here)
        self._set("atlocation", self._agent, there)
        return True

    def _turn(self, receptacle: str, *, opened: bool) -> bool:
        closed = not self._has("opened", receptacle)
        if not self._at(receptacle) or not self._has("openable", receptacle) or closed != opened:
            return False
        (self._set if opened else self._drop)("opened", receptacle)
        return True

    def _take(self, thing: str, receptacle: str) -> bool:
        if not self._reaches_into(receptacle) or self._facts.get("holdsany"):
            return False
        if not self._has("inreceptacle", thing, receptacle) or not self._has("pickupable", thing):
            return False
        self._drop("inreceptacle", thing, receptacle)
        self._drop("objectatlocation", thing, self._location())
        self._set("holds", self._agent, thing)
        self._set("holdsany", self._agent)
        return True

    def _move(self, thing: str, receptacle: str) -> bool:
        if not self._reaches_into(receptacle) or not self._has("holds", self._agent, thing):
            return False
        kinds = self._value("receptacletype", receptacle), self._value("objecttype", thing)
        if not self._has("cancontain", *map(str, kinds)):
            return False
        self._drop("holds", self._agent, thing)
        self._drop("holdsany", self._agent)
        self._set("inreceptacle", thing, receptacle)
        self._set("objectatlocation", thing, self._location())
        return True

    def _treat(self, verb: str, thing: str, receptacle: str) -> bool:
        needs, appliance, becomes, ceases = _TREATMENTS[verb]
        if not self._at(receptacle) or not self._has("holds", self._agent, thing) or not self._has(needs, thing):
            return False
        if self._value("receptacletype", receptacle) != appliance:
            return False
        self._set(becomes, thing)
        if ceases:
            self._drop(ceases, thing)
        return True

    def _use(self, thing: str) -> bool:
        places = [atom[1] for atom in self._facts.get("inreceptacle", ()) if atom[0] == thing]
        if not self._has("toggleable", thing) or not any(self._at(place) for place in places):
            return False
        self._set("istoggled", thing)
        return True

    def _slice(self, thing: str, knife: str) -> bool:
        if not self._has("holds", self._agent, knife) or not self._has("sliceable", thing):
            return False
        if self._value("objecttype", knife) not in ("knifetype", "butterknifetype"):
            return False
        if not self._has("objectatlocation", thing, self._location()):
            return False
        self._set("issliced", thing)
        return True

    def _location(self) -> str:
        return self._value("atlocation", self._agent) or ""

    def _at(self, receptacle: str) -> bool:
        return self._has("receptacleatlocation", receptacle, self._location())

    def _reaches_into(self, receptacle: str) -> bool:
        closed = self._has("openable", receptacle) and not self._has("opened", receptacle)
        return self._at(receptacle) and not closed

    def _has(self, predicate: str, *arguments: str) -> bool:
        return arguments in self._facts.get(predicate, ())

    def _value(self, predicate: str, subject: str) -> str | None:
        """The second argument of a fact that is unique for its first."""
        return next((atom[1] for atom in self._facts.get(predicate, ()) if atom[0] == subject), None)

    def _set(self, predicate: str, *arguments: str) -> None:
        self._facts.setdefault(predicate, set()).add(arguments)

    def _drop(self, predicate: str, *arguments: str) -> None:
        self._facts.get(predicate, set()).discard(arguments)

    def _satisfy(self, formula: Expression, binding: Binding) -> Iterator[Binding]:
        """The extensions of ``binding`` under which a formula holds (conjunctions are joins over the facts)."""
        if not isinstance(formula, list) or not formula:
            raise ValueError(f"not a formula: {formula}")
        head, *parts = formula
        if head == "and":
            yield from self._satisfy_all(sorted(parts, key=_rank), binding)
        elif head == "or":
            for part in parts:
                yield from self._satisfy(part, binding)
        elif head == "not":
            if not any(True for _ in self._satisfy(parts[0], binding)):
                yield binding
        elif head == "exists":
            hidden = set(typed_list(parts[0]))
            outer = {name: value for name, value in binding.items() if name not in hidden}
            kept = {name: value for name, value in binding.items() if name in hidden}
            for found in self._satisfy(parts[1], outer):
                yield {name: value for name, value in found.items() if name not in hidden} | kept
        elif head == "=":
            left, right = (binding.get(str(part), str(part)) for part in parts)
            if left == right:
                yield binding
        elif isinstance(head, str) and all(isinstance(part, str) for part in parts):
            yield from self._match(head, [str(part) for part in parts], binding)
        else:
            raise ValueError(f"cannot read the goal at {formula}")

    def _satisfy_all(self, formulas: Sequence[Expression], binding: Binding) -> Iterator[Binding]:
        if not formulas:
            yield binding
            return
        for extended in self._satisfy(formulas[0], binding):
            yield from self._satisfy_all(formulas[1:], extended)

    def _match(self, predicate: str, pattern: Sequence[str], binding: Binding) -> Iterator[Binding]:
        for atom in self._facts.get(predicate, ()):
            extended = dict(binding)
            for name, value in zip(pattern, atom, strict=True):
                expected = extended.setdefault(name, value) if name.startswith("?") else name
                if expected != value:
                    break
            else:
                yield extended


def _rank(formula: Expression) -> int:
    """Order of evaluation in a conjunction: tests come last, when their variables are bound."""
    head = formula[0] if isinstance(formula, list) and formula else None
    return 2 if head in ("not", "=") else int(head == "exists")


def replay(problem: str, walkthrough: Iterable[str]) -> None:
    """Check that a walkthrough wins: every command is possible, and the goal holds after the last one, not before.

    Raises:
        PlanError: it does not win; the message says where it fails.
        ValueError: the problem cannot be read.
    """
    world = World(problem)
    if world.won():
        raise PlanError("the goal already holds at the start")
    step = 0
    for step, command in enumerate(walkthrough, start=1):
        if world.won():
            raise PlanError(f"the goal already holds before command {step}, {command!r}")
        try:
            world.step(command)
        except PlanError as error:
            raise PlanError(f"command {step}: {error}") from None
    if not world.won():
        raise PlanError(f"the goal does not hold after all {step} commands of the walkthrough")


def _read_command(command: str) -> tuple[str, list[str]]:
    for pattern in _COMMANDS:
        if match := pattern.fullmatch(command):
            verb, *names = match.groups()
            return verb, names
    raise PlanError(f"{command!r} is no command")
