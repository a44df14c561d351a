"""PopQA's sixteen relations: how it asks for each, and which (subject, relation) a question asks for."""

from __future__ import annotations

import re

from rsipo.searchdata.text import normalise_question, without_disambiguation

#: relation -> question. Every PopQA question follows one of these.
TEMPLATES = {
    "occupation": "What is {}'s occupation?",
    "place of birth": "In what city was {} born?",
    "genre": "What genre is {}?",
    "father": "Who is the father of {}?",
    "country": "In what country is {}?",
    "producer": "Who was the producer of {}?",
    "director": "Who was the director of {}?",
    "capital of": "What is {} the capital of?",
    "screenwriter": "Who was the screenwriter for {}?",
    "composer": "Who was the composer of {}?",
    "color": "What color is {}?",
    "religion": "What is the religion of {}?",
    "sport": "What sport does {} play?",
    "author": "Who is the author of {}?",
    "mother": "Who is the mother of {}?",
    "capital": "What is the capital of {}?",
}
#: Names of the same Wikidata properties that differ from PopQA's.
_OTHER_NAMES = {
    "religion or worldview": "religion",
    "religion or belief": "religion",
    "colour": "color",
    "birthplace": "place of birth",
    "composed by": "composer",
    "film director": "director",
}
_PATTERNS = {
    relation: re.compile(re.escape(template.rstrip("?")).replace(r"\{\}", "(.+?)") + r"\s*\?*\s*", re.IGNORECASE)
    for relation, template in TEMPLATES.items()
}


def popqa_relation(name: str) -> str | None:
    """PopQA's name of a Wikidata property label, None when PopQA does not ask for it."""
    label = " ".join(name.casefold().split())
    label = _OTHER_NAMES.get(label, label)
    return label if label in TEMPLATES else None


def popqa_question(subject: str, relation: str) -> str:
    """The question PopQA would ask."""
    return TEMPLATES[relation].replace("{}", subject)


def fact_key(subject: str, relation: str) -> tuple[str, str]:
    """What two rows about one fact share: the subject in its plain form, and PopQA's name of the relation."""
    return normalise_question(without_disambiguation(subject)), relation


def fact_of_question(question: str) -> tuple[str, str] | None:
    """The fact a question in PopQA's form asks for, whichever dataset it is from; None for any other question."""
    for relation, pattern in _PATTERNS.items():
        if match := pattern.fullmatch(question.strip()):
            return fact_key(match[1], relation)
    return None
