"""Reading the text of a PDDL problem of the domain ``alfred`` (STRIPS facts, a goal of and/or/not/exists/=)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, Union

Expression: TypeAlias = Union[str, list["Expression"]]  # noqa: UP007 (evaluated at run time, on Python 3.10 too)

_MAX_DEPTH = 100


@dataclass(frozen=True)
class Problem:
    """A problem, all in lower case.

    Attributes:
        types: identifier -> its type, for every declared object.
        facts: the initial facts, each as (predicate, argument, ...).
        goal: the goal's formula.
    """

    types: Mapping[str, str]
    facts: tuple[tuple[str, ...], ...]
    goal: Expression


def read_problem(text: str) -> Problem:
    """Parse a problem.

    Raises:
        ValueError: the text is no problem, declares something twice, or names something it does not declare.
    """
    definition = _parse(text)
    if not isinstance(definition, list) or not definition or definition[0] != "define":
        raise ValueError("not a PDDL problem")
    sections = {str(part[0]): part[1:] for part in definition[1:] if isinstance(part, list) and part}
    for name in (":objects", ":init", ":goal"):
        if not sections.get(name):
            raise ValueError(f"the problem has no section {name}")
    types = typed_list(sections[":objects"])
    facts = []
    for fact in sections[":init"]:
        if isinstance(fact, str) or not all(isinstance(word, str) for word in fact):
            raise ValueError(f"not a fact: {fact}")
        words = tuple(map(str, fact))
        if unknown := next((word for word in words[1:] if word not in types), None):
            raise ValueError(f"the fact ({' '.join(words)}) names {unknown!r}, which is not declared")
        facts.append(words)
    return Problem(types, tuple(facts), sections[":goal"][0])


def displayed_names(types: Mapping[str, str]) -> dict[str, str]:
    """Identifier -> ALFWorld's displayed name: ids of one kind, sorted, are numbered downwards."""
    kinds: dict[str, str] = {}
    for identifier in sorted(types):
        kind, bar, _ = identifier.partition("_bar_")
        if bar and types[identifier] in ("object", "receptacle"):
            kinds[identifier] = kind + ("basin" if "basin" in identifier else "")
    numbers = Counter(kinds.values())
    names = {}
    for identifier, kind in kinds.items():
        names[identifier] = f"{kind} {numbers[kind]}"
        numbers[kind] -= 1
    return names


def typed_list(words: Expression) -> dict[str, str]:
    """Name -> type for a typed list, ``a b - type c - other``. Raises ValueError when it is not one."""
    types: dict[str, str] = {}
    waiting: list[str] = []
    rest = iter(words)
    for word in rest:
        if not isinstance(word, str):
            raise ValueError(f"not a name: {word}")
        if word == "-":
            kind = str(next(rest, ""))
            types.update(dict.fromkeys(waiting, kind))
            waiting = []
        elif word in types or word in waiting:
            raise ValueError(f"{word!r} is declared twice")
        else:
            waiting.append(word)
    if waiting:
        raise ValueError(f"{waiting[0]!r} is declared without a type")
    return types


def _parse(text: str) -> Expression:
    tokens = re.findall(r"[()]|[^\s()]+", re.sub(r";[^\n]*", "", text).lower())
    stack: list[list[Expression]] = [[]]
    for token in tokens:
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) < 2:
                raise ValueError("the problem has a closing bracket too many")
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
        if len(stack) > _MAX_DEPTH:
            raise ValueError(f"the problem nests deeper than {_MAX_DEPTH} brackets")
    if len(stack) != 1 or len(stack[0]) != 1:
        raise ValueError("the problem's brackets do not match")
    return stack[0][0]
