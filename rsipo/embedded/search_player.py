"""A scripted player of generated questions that sees only text: it reads facts, and searches for what is missing.

Its thoughts are short phrases that name the relation it is after.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

from agent_system.environments.search.generator.names import PIECES
from agent_system.environments.search.generator.world import FACTS, QUESTION_KINDS, VALUES, QuestionKind

_NAME = r"(\w+ \w+)"
_QUESTIONS = [(kind, re.compile(re.escape(kind.template).replace(r"\{\}", _NAME))) for kind in QUESTION_KINDS]
_STATEMENTS = [
    (relation, re.compile(sentence.replace(".", r"\.").format(subject=_NAME, value=_NAME)))
    for relation, (_, sentence) in FACTS.items()
]
GUESS, ANSWER = "guess", "answer"
VAGUE_SKILL = "search with care and read every document before you answer."


@dataclass(frozen=True, slots=True)
class Quest:
    """A question, understood: follow ``kind.relations`` from ``subject``."""

    kind: QuestionKind
    subject: str


def parse_question(question: str) -> Quest:
    """Raises ValueError for a question of another form."""
    for kind, pattern in _QUESTIONS:
        if match := pattern.fullmatch(question):
            return Quest(kind, match.group(1))
    raise ValueError(f"question {question!r}: none of the generated kinds has this form")


def statements(text: str) -> dict[tuple[str, str], str]:
    """The facts that passages state: (subject, relation) -> value."""
    return {(found[0], relation): found[1] for relation, pattern in _STATEMENTS for found in pattern.findall(text)}


def procedure(kind: QuestionKind) -> str:
    """A skill that says which way leads from the question to its answer, and names nobody."""
    steps, subject = [], f"the {FACTS[kind.relations[0]][0]}"
    for relation in kind.relations:
        steps.append(f"search {subject}, read its {relation}")
        subject = f"that {VALUES[relation]}"
    return ", ".join([*steps, f"answer with {subject}."])


def is_procedure(skill: str) -> bool:
    """Whether a skill is one of those above."""
    return skill in {procedure(kind) for kind in QUESTION_KINDS}


def response(thought: str, tag: str, text: str) -> str:
    """A turn's response. The space keeps a name's tokens the same as in the passages."""
    return f"<think>{thought}</think><{tag}> {text}</{tag}>"


@dataclass(slots=True)
class SearchPlayer:
    """One player for one episode.

    Args:
        quest: what to find out.
        rng: source of the noise.
        noise: chance per turn to search for, or answer with, a name at random among those seen.
    """

    quest: Quest
    rng: random.Random
    noise: float = 0.0
    _facts: dict[tuple[str, str], str] = field(default_factory=dict)

    def act(self, observation: str, *, last_turn: bool) -> str:
        """The response to what the latest search returned. In the last turn, whose search is not executed, it answers."""
        self._facts |= statements(observation)
        if self.rng.random() < self.noise:
            tag = "answer" if last_turn or self.rng.random() < 0.5 else "search"
            return response(GUESS, tag, self._any_name())
        name = self.quest.subject
        for relation in self.quest.kind.relations:
            if (name, relation) not in self._facts:
                if last_turn:
                    return response(GUESS, "answer", self._any_name())
                return response(f"find {relation}", "search", name)
            name = self._facts[name, relation]
        return response(ANSWER, "answer", name)

    def _any_name(self) -> str:
        """A name of the answer's kind that was seen, or one made up."""
        wanted = VALUES[self.quest.kind.relations[-1]]
        seen = sorted({value for (_, relation), value in self._facts.items() if VALUES[relation] == wanted})
        return self.rng.choice(seen) if seen else " ".join(self.rng.choice(words) for words in PIECES[wanted])
