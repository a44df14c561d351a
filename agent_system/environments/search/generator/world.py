"""The facts of an invented world, the passages that state them, and the questions about them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from agent_system.environments.search.generator.names import PIECES

#: relation -> (kind of its subject, sentence that states it)
FACTS = {
    "birthplace": ("person", "{subject} was born in {value}."),
    "mother": ("person", "The mother of {subject} is {value}."),
    "country": ("city", "{subject} is in {value}."),
    "mayor": ("city", "The mayor of {subject} is {value}."),
    "author": ("book", "{subject} was written by {value}."),
    "scene": ("book", "The scene of {subject} is {value}."),
}
VALUES = {
    "birthplace": "city",
    "mother": "person",
    "country": "country",
    "mayor": "person",
    "author": "person",
    "scene": "city",
}


@dataclass(frozen=True, slots=True)
class QuestionKind:
    """A template, and the relations to follow from its subject to the answer; as many as the question has hops."""

    template: str
    relations: tuple[str, ...]

    @property
    def source(self) -> str:
        """What stands in for the source dataset."""
        return "onehop" if len(self.relations) == 1 else "twohop"

    @property
    def subject_kind(self) -> str:
        return FACTS[self.relations[0]][0]


#: In PopQA's wording where it has the relation.
QUESTION_KINDS = (
    QuestionKind("In what city was {} born?", ("birthplace",)),
    QuestionKind("Who is the mother of {}?", ("mother",)),
    QuestionKind("Who is the author of {}?", ("author",)),
    QuestionKind("In what country is {}?", ("country",)),
    QuestionKind("In what city was the mother of {} born?", ("mother", "birthplace")),
    QuestionKind("In what city was the author of {} born?", ("author", "birthplace")),
    QuestionKind("Who is the mother of the author of {}?", ("author", "mother")),
    QuestionKind("In what country was {} born?", ("birthplace", "country")),
    QuestionKind("Who is the mayor of the scene of {}?", ("scene", "mayor")),
)


@dataclass(frozen=True, slots=True)
class Question:
    """One question; ``passages`` are the entities whose passages lead to the answer, in order."""

    kind: QuestionKind
    subject: str
    answer: str
    passages: tuple[str, ...]

    @property
    def text(self) -> str:
        return self.kind.template.format(self.subject)


@dataclass(slots=True)
class World:
    """Entities by kind, and facts: (subject, relation) -> value."""

    entities: dict[str, list[str]] = field(default_factory=dict)
    facts: dict[tuple[str, str], str] = field(default_factory=dict)

    def passages(self) -> Iterator[tuple[str, str]]:
        """(title, text) of every entity that facts are known of, in a fixed order."""
        for subject, facts in itertools.groupby(self.facts.items(), key=lambda fact: fact[0][0]):
            yield subject, " ".join(FACTS[rel][1].format(subject=subject, value=value) for (_, rel), value in facts)

    def ask(self, kind: QuestionKind, subject: str) -> Question:
        """The question of this kind about ``subject``."""
        visited, value = [], subject
        for relation in kind.relations:
            visited.append(value)
            value = self.facts[value, relation]
        return Question(kind, subject, value, tuple(visited))


def make_world(seed: int, *, persons: int, cities: int, countries: int, books: int) -> World:
    """A world of so many entities, the same for the same arguments. Raises ValueError for more than there are names."""
    rng = random.Random(f"world/{seed}")
    world = World()
    for kind, count in (("person", persons), ("city", cities), ("country", countries), ("book", books)):
        names = [f"{first} {second}" for first, second in itertools.product(*PIECES[kind])]
        if not 2 <= count <= len(names):
            raise ValueError(f"{count} of kind {kind}: between 2 and {len(names)} can be named")
        world.entities[kind] = rng.sample(names, count)
    for subject_kind in ("person", "city", "book"):
        relations = [relation for relation, (kind, _) in FACTS.items() if kind == subject_kind]
        for subject in world.entities[subject_kind]:
            for relation in relations:
                candidates = [name for name in world.entities[VALUES[relation]] if name != subject]
                world.facts[subject, relation] = rng.choice(candidates)
    return world
