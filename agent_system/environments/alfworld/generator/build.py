"""One game: a pure function of its seed, index, split, task type and preset, and of the installed ``alfworld``.

No clock, no global random state, no iteration over sets: the same request gives the same bytes in every process.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from agent_system.environments.alfworld.generator.package import GOAL_PLACEHOLDER, alfworld_package
from agent_system.environments.alfworld.generator.pddl import problem_text
from agent_system.environments.alfworld.generator.planner import Goal, Thing, shortest_plan
from agent_system.environments.alfworld.generator.presets import Preset
from agent_system.environments.alfworld.generator.scene import GENERATOR_VERSION, Receptacle, name_all, scene
from agent_system.environments.alfworld.generator.tables import (
    FIXTURES,
    LAMP,
    LOOK,
    NEVER_A_GOAL,
    PLACE,
    PLACEMENTS,
    ROOMS,
    SENTENCES,
    TASK_ROOMS,
    TREATMENTS,
    TWO,
)

GAME_FILE = "game.tw-pddl"
FILES = (GAME_FILE, "traj_data.json", "initial_state.pddl")
_DRAWS = 2000


@dataclass(frozen=True)
class Game:
    """A finished game.

    Attributes:
        folder: its folder, relative to the root of the data.
        split: train, valid_seen or valid_unseen.
        task_type: one of the six.
        fingerprint: sha256 (hex) of all that a player can tell apart.
        walkthrough: a winning sequence of commands.
        problem: the PDDL problem.
        files: name -> text of the FILES.
    """

    folder: str
    split: str
    task_type: str
    fingerprint: str
    walkthrough: list[str]
    problem: str
    files: Mapping[str, str]

    @property
    def sha256(self) -> str:
        """Hash of the game file's bytes."""
        return hashlib.sha256(self.files[GAME_FILE].encode()).hexdigest()


def build_game(
    seed: int, index: int, split: str, task_type: str, preset: Preset, taken: Set[str] = frozenset()
) -> Game:
    """Game number ``index`` of a seed: the first usable draw whose fingerprint is not in ``taken``.

    Raises:
        ValueError: the preset allows no further game of this type.
    """
    key = f"rsipo/game/{GENERATOR_VERSION}/{preset.settings()}/{split}/{task_type}/{seed}/{index}"
    for attempt in range(_DRAWS):
        rng = random.Random(f"{key}/{attempt}")
        draft = _draft(split, task_type, preset, rng)
        if draft and _split_fits(draft.fingerprint, split) and draft.fingerprint not in taken:
            return _finish(draft, seed, index, split, preset, rng)
    raise ValueError(
        f"found no new {task_type} game for {split} in {_DRAWS} draws, {len(taken)} games are made: "
        f"ask for fewer games, a larger size than {preset.name!r}, or other knobs"
    )


@dataclass(frozen=True)
class _Draft:
    room: str
    number: int
    goal: Goal
    layout: Sequence[Receptacle]
    things: Sequence[Thing]

    @functools.cached_property
    def fingerprint(self) -> str:
        look = [
            *self.goal,
            sorted((r.name, r.location, r.door) for r in self.layout),
            sorted((thing.kind, thing.at.name) for thing in self.things),
        ]
        return hashlib.sha256(json.dumps(look).encode()).hexdigest()


def _split_fits(fingerprint: str, split: str) -> bool:
    """The fingerprint decides the split a game may be in, so splits made in separate runs never overlap."""
    return {0: "valid_seen", 1: "valid_unseen"}.get(int(fingerprint[:8], 16) % 8, "train") == split


def _draft(split: str, task_type: str, preset: Preset, rng: random.Random) -> _Draft | None:
    """Choose a room, a task and what lies where; None when the room allows no such task."""
    room = rng.choice(TASK_ROOMS[task_type])
    seen, unseen = preset.scenes
    index = seen + rng.randrange(unseen) if split == "valid_unseen" else rng.randrange(seen)
    layout = scene(room, index, preset)
    goals = _possible_goals(task_type, room, layout)
    if not goals:
        return None
    goal = rng.choice(goals)
    things = _lay_out(_choose_kinds(goal, room, layout, preset, rng), goal, room, layout, preset, rng)
    return _Draft(room, ROOMS[room].first_number + index, goal, layout, things)


@functools.cache
def _weights(room: str) -> dict[str, dict[str, float]]:
    """Kind of object -> {kind of receptacle: weight} in a room, only where the object may be put."""
    package = alfworld_package()
    return {
        kind: {r: weight for r, weight in row.weights.items() if package.can_contain(r, kind)}
        for row in PLACEMENTS
        if room in row.rooms
        for kind in row.objects
    }


def _possible_goals(task_type: str, room: str, layout: Sequence[Receptacle]) -> list[Goal]:
    present = {receptacle.kind for receptacle in layout}
    treatment = TREATMENTS.get(task_type)
    goals: list[Goal] = []
    for thing, weights in _weights(room).items():
        places = [kind for kind in weights if kind in present]
        if task_type == LOOK:
            # Nobody looks at the remote control under a lamp: ALFRED has no such task.
            if places and thing != "RemoteControl" and present.intersection(FIXTURES[LAMP].receptacles):
                goals.append(Goal(task_type, thing, LAMP))
            continue
        if len(places) < 2:  # one place to find it, another to bring it to
            continue
        appliance = treatment.appliance if treatment else None
        if treatment and not (appliance in present and alfworld_package().is_fit(thing, treatment.trait)):
            continue
        goals += [Goal(task_type, thing, kind) for kind in places if kind not in NEVER_A_GOAL and kind != appliance]
    return goals


def _choose_kinds(goal: Goal, room: str, layout: Sequence[Receptacle], preset: Preset, rng: random.Random) -> list[str]:
    """Kinds of all objects in the room: the target's copies first, then distractors, then fixtures."""
    present = {receptacle.kind for receptacle in layout}
    weights = _weights(room)
    total = rng.randint(*(preset.objects or ROOMS[room].objects))
    targets = max(rng.randint(*preset.targets), 2 if goal.task_type == TWO else 1)
    others = [kind for kind in weights if kind != goal.thing and present.intersection(weights[kind])]
    others = rng.sample(others, len(others))
    more = [kind for kind in others for _ in range(rng.randint(0, preset.copies - 1))]
    distractors = sorted((others[:total] + more)[: max(0, total - targets)])
    fixtures = [
        kind
        for kind, fixture in FIXTURES.items()
        if present.intersection(fixture.receptacles)
        and (
            kind == goal.target
            or (preset.receptacles is None and room in fixture.rooms and rng.random() < fixture.chance)
        )
    ]
    return [goal.thing] * targets + distractors + fixtures


def _lay_out(
    kinds: Sequence[str], goal: Goal, room: str, layout: Sequence[Receptacle], preset: Preset, rng: random.Random
) -> list[Thing]:
    """Put every object somewhere; copies of the target never where the task wants them."""
    per_kind = Counter(receptacle.kind for receptacle in layout)
    things = []
    for kind, (identifier, name) in zip(kinds, name_all(kinds, rng), strict=True):
        weights = dict.fromkeys(FIXTURES[kind].receptacles, 1.0) if kind in FIXTURES else _weights(room)[kind]
        solved = goal.target if kind == goal.thing and goal.task_type in (PLACE, TWO) else None
        spots = [receptacle for receptacle in layout if receptacle.kind in weights and receptacle.kind != solved]
        if kind == goal.thing and preset.hide is not None:
            hidden = rng.random() < preset.hide
            spots = [receptacle for receptacle in spots if receptacle.door == hidden] or spots
        # A kind's weight is shared by all receptacles of that kind.
        at = rng.choices(spots, [weights[receptacle.kind] / per_kind[receptacle.kind] for receptacle in spots])[0]
        things.append(Thing(identifier, kind, name, at))
    return things


def _finish(draft: _Draft, seed: int, index: int, split: str, preset: Preset, rng: random.Random) -> Game:
    package, goal = alfworld_package(), draft.goal
    trial = f"trial_G{seed:06d}_{index:06d}_{draft.fingerprint[:12]}"
    walkthrough = shortest_plan(goal, draft.layout, draft.things)
    sentence = rng.choice(SENTENCES[goal.task_type]).format(object=goal.thing.lower(), receptacle=goal.target.lower())
    problem = problem_text(trial, goal, draft.layout, draft.things, package, slicing=preset.slicing)
    game = {
        "pddl_domain": package.domain,
        "grammar": package.grammar.replace(GOAL_PLACEHOLDER, sentence),
        "pddl_problem": problem,
        "solvable": True,
        "walkthrough": walkthrough,
    }
    trajectory = _trajectory(draft, trial, seed, index, preset, len(walkthrough))
    files = dict(zip(FILES, (json.dumps(game), json.dumps(trajectory), problem), strict=True))
    folder = f"json_2.1.1/{split}/{goal.task_type}-{goal.thing}-None-{goal.target}-{draft.number}/{trial}"
    return Game(folder, split, goal.task_type, draft.fingerprint, walkthrough, problem, files)


def _trajectory(draft: _Draft, trial: str, seed: int, index: int, preset: Preset, steps: int) -> dict[str, object]:
    """The part of ALFRED's ``traj_data.json`` that text games need, and how hard the game is."""
    goal, layout, room = draft.goal, draft.layout, draft.room
    look = goal.task_type == LOOK
    copies = [thing for thing in draft.things if thing.kind == goal.thing]
    hidden = sum(copy.at.door for copy in copies)
    doors = sum(receptacle.door for receptacle in layout)
    # Expected commands to find a copy in random order, opening every door on the way.
    search = (len(layout) + 1) / (len({copy.at for copy in copies}) + 1) * (1 + doors / len(layout))
    return {
        "task_id": trial,
        "task_type": goal.task_type,
        "pddl_params": {
            "mrecep_target": "",
            "object_sliced": False,
            "object_target": goal.thing,
            "parent_target": "" if look else goal.target,
            "toggle_target": goal.target if look else "",
        },
        "turk_annotations": {"anns": []},
        "scene": {"floor_plan": f"Generated-{preset.name}-{draft.number}", "scene_num": draft.number},
        "generator": {
            "version": GENERATOR_VERSION,
            "preset": preset.name,
            "seed": seed,
            "index": index,
            "room": room,
            "receptacles": len(layout),
            "doors": doors,
            "objects": len(draft.things),
            "targets": len(copies),
            "targets_behind_doors": hidden,
            "steps": steps,
            "receptacles_to_search": sum(receptacle.kind in _weights(room)[goal.thing] for receptacle in layout),
            "blind_search_steps": round(search, 1),
        },
    }
