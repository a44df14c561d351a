"""A scripted player that sees only text: what a policy sees, no game state.

It searches room by room, remembers where it has seen what, and carries the object through its treatment to its goal.
Given locations (from a skill) it goes straight there. Its thoughts are short phrases that name the present subgoal.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent_system.environments.base import Observation

LAMP = "desklamp"
TREATMENTS = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_ADJECTIVES = {"clean": "clean", "hot": "heat", "cool": "cool"}
_SENTENCES = (
    r"(?:examine the|look at) (?P<thing>\w+) (?:with|under) the desklamp",
    r"(?P<two>put|find) two (?P<thing>\w+) (?:and put them )?(?:in|on) (?P<goal>\w+)",
    r"put a (?P<adjective>clean|hot|cool) (?P<thing>\w+) (?:in|on) (?P<goal>\w+)",
    r"(?P<verb>clean|heat|cool) some (?P<thing>\w+) and put it (?:in|on) (?P<goal>\w+)",
    r"put (?:a|an|some) (?P<thing>\w+) (?:in|on) (?P<goal>\w+)",
)
_CONTENTS = re.compile(r"(?:On the|The) (\w+ \d+)(?: is open\. In it)?, you see (.*?)\.")
_ITEM = re.compile(r"\w+ \d+")


@dataclass(frozen=True, slots=True)
class Goal:
    """A task sentence, understood. ``goal`` is the kind of receptacle, or the lamp; ``treatment`` a verb or empty."""

    thing: str
    goal: str
    treatment: str = ""
    two: bool = False

    @property
    def needs_lamp(self) -> bool:
        return self.goal == LAMP


def parse_goal(instruction: str) -> Goal:
    """The goal a task sentence states. Raises ValueError for a sentence of another form."""
    text = instruction.strip().rstrip(".").lower()
    for sentence in _SENTENCES:
        if match := re.fullmatch(sentence, text):
            found = match.groupdict()
            treatment = found.get("verb") or _ADJECTIVES.get(found.get("adjective") or "", "")
            return Goal(found["thing"], found.get("goal") or LAMP, treatment, bool(found.get("two")))
    raise ValueError(f"task sentence {instruction!r}: none of the six ALFWorld task types has this form")


def sightings(observation: str) -> dict[str, str]:
    """Items an observation shows, each with the receptacle it is in: ``{"mug 1": "desk 2"}``."""
    return {item: place for place, items in _CONTENTS.findall(observation) for item in _ITEM.findall(items)}


def kind(name: str) -> str:
    """``"desk 1"`` -> ``"desk"``."""
    return name.split()[0]


def purposeful(actions: tuple[str, ...]) -> list[str]:
    """The actions that can bring a task forward: without help, looking, and closing."""
    idle = ("help", "inventory", "look")
    return [a for a in actions if a not in idle and not a.startswith(("examine ", "close "))]


@dataclass(slots=True)
class ScriptedPlayer:
    """One player for one episode.

    Args:
        goal: what to achieve.
        rng: source of the search order and of the noise.
        noise: chance per turn of a random purposeful action instead of the planned one.
        known: locations of items known beforehand, e.g. from a skill.
    """

    goal: Goal
    rng: random.Random
    noise: float = 0.0
    known: Mapping[str, str] = field(default_factory=dict)
    place: str = ""
    _holding: str = ""
    _treated: bool = False
    _destination: str = ""
    _where: dict[str, str] = field(default_factory=dict)
    _visited: set[str] = field(default_factory=set)
    _delivered: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._where = dict(self.known)

    def act(self, observation: Observation) -> tuple[str, str]:
        """The thought and the action of this turn; the action is always one of the admissible ones."""
        actions = purposeful(observation.admissible_actions)
        for item, place in sightings(observation.text).items():
            self._where.setdefault(item, place)
        if self.rng.random() < self.noise:
            thought, action = "look around", self.rng.choice(actions)
        else:
            thought, action = self._plan(actions)
        self._remember(action)
        return thought, action

    def _plan(self, actions: list[str]) -> tuple[str, str]:
        thing = self.goal.thing
        if not self._holding:
            for action in actions:
                if action.startswith(f"take {thing} ") and not self._at_goal(action.split(" from ")[1]):
                    return f"take {thing}", action
            return f"find {thing}", self._search(thing, actions)
        if kind(self._holding) != thing:
            return f"drop {kind(self._holding)}", self._put_down(actions)
        if self.goal.treatment and not self._treated:
            return f"{self.goal.treatment} {thing}", self._treat(actions)
        if self.goal.needs_lamp:
            use = [a for a in actions if a.startswith(f"use {LAMP} ")]
            return f"use {LAMP}", use[0] if use else self._search(LAMP, actions)
        return f"put {thing}", self._deliver(actions)

    def _search(self, what: str, actions: list[str]) -> str:
        reachable = [a[6:] for a in actions if a.startswith("go to ")]
        if f"open {self.place}" in actions and not self._at_goal(self.place):
            return f"open {self.place}"
        for item, place in self._where.items():
            wanted = kind(item) == what and item not in self._delivered and not self._at_goal(place)
            if wanted and place in reachable:
                return f"go to {place}"
        fresh = [place for place in reachable if place not in self._visited]
        if not fresh:
            self._visited.clear()
        return f"go to {self.rng.choice(fresh or reachable)}"

    def _treat(self, actions: list[str]) -> str:
        treat = [a for a in actions if a.startswith(f"{self.goal.treatment} {self._holding} with")]
        return treat[0] if treat else self._go_to(TREATMENTS[self.goal.treatment], actions)

    def _deliver(self, actions: list[str]) -> str:
        put = [a for a in actions if a.startswith(f"move {self._holding} to {self.goal.goal} ")]
        if put:
            return put[0]
        if self.place and kind(self.place) == self.goal.goal and f"open {self.place}" in actions:
            return f"open {self.place}"
        if f"go to {self._destination}" in actions:
            return f"go to {self._destination}"
        action = self._go_to(self.goal.goal, actions)
        self._destination = action[6:]
        return action

    def _put_down(self, actions: list[str]) -> str:
        put = [a for a in actions if a.startswith(f"move {self._holding} to ")]
        if put:
            return put[0]
        return f"open {self.place}" if f"open {self.place}" in actions else self._go_to("", actions)

    def _go_to(self, what: str, actions: list[str]) -> str:
        """Go to a receptacle of this kind, to any when there is none of it to go to."""
        go = [a for a in actions if a.startswith("go to ")]
        return self.rng.choice([a for a in go if kind(a[6:]) == what] or go)

    def _at_goal(self, place: str) -> bool:
        """With two objects to bring, what lies at the goal already is where it should be."""
        return self.goal.two and kind(place) == self.goal.goal

    def _remember(self, action: str) -> None:
        words = action.split()
        if words[0] == "go":
            self.place = action[6:]
            self._visited.add(self.place)
        elif words[0] == "take":
            self._holding = f"{words[1]} {words[2]}"
            self._where.pop(self._holding, None)
        elif words[0] == "move":
            place = f"{words[4]} {words[5]}"
            if words[4] == self.goal.goal:
                self._delivered.add(self._holding)
                self._destination = place
            self._holding, self._treated = "", False
        elif words[0] == self.goal.treatment:
            self._treated = True
