"""Speed patches for TextWorld's PDDL engine: the only place that replaces its internals.

Inside ``applied(cache)`` games load and step many times faster, with the same texts, commands and outcomes as stock
TextWorld, which a test verifies on real games. Five things change:

1. Translations are remembered (:mod:`translation`); stock translates four times an episode, and builds two states.
2. The second translation, which only serves replanning (``policy_commands``), is skipped.
3. The grammar is parsed once and the task sentence put in; a grammar of another shape is parsed once each.
4. Text templates and logical queries are parsed once each.
5. Text generation copies its context and symbols shallowly: it never changes what they refer to.

Not thread-safe, like TextWorld itself.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import fast_downward
import textworld.envs.pddl.logic as pddl_logic
import textworld.envs.pddl.textgen as textgen
from textworld.logic import Rule

from agent_system.environments.alfworld.safety import split_task
from agent_system.environments.alfworld.translation import TranslationCache

_StockLogic = pddl_logic.GameLogic
_stock_parse = textgen._parse_and_convert
_stock_deepcopy = textgen.deepcopy
_stock_query = Rule.parse_conjunctive_query

_PROBE = "a task"


@contextlib.contextmanager
def applied(cache: TranslationCache) -> Iterator[None]:
    """Patches TextWorld for the duration of a block and puts everything back afterwards.

    A block holds either one step or the load of a game followed by its reset, which then takes over the state that the
    load built and nothing has touched.
    """
    untouched: dict[tuple[int, str], _State] = {}

    def state(downward_lib: Any, pddl_problem: str, logic: Any) -> _State:
        key = id(downward_lib), pddl_problem
        if key not in untouched:
            untouched[key] = _State(downward_lib, pddl_problem, logic)
            return untouched[key]
        return untouched.pop(key)

    def pddl2sas(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> tuple[Any, str]:
        if optimize:
            return None, ""
        translation = cache.get(domain, problem)
        return translation.task, translation.sas

    replacements: list[tuple[Any, str, Any]] = [
        (fast_downward, "pddl2sas", pddl2sas),
        (pddl_logic, "GameLogic", _game_logic),
        (pddl_logic, "PddlState", state),
        (textgen, "_parse_and_convert", _parse),
        (textgen, "copy_context", _copy_context),
        (textgen, "deepcopy", _copy_symbols),
        (Rule, "parse_conjunctive_query", staticmethod(_parse_query)),
    ]
    originals = [(owner, name, vars(owner)[name]) for owner, name, _ in replacements]
    try:
        for owner, name, replacement in replacements:
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


# -- loading -------------------------------------------------------------------------------------------------------


class _State(pddl_logic.PddlState):
    """A state without the replanning task, which costs as much to load as the task itself."""

    def __init__(self, downward_lib: Any, pddl_problem: str, logic: Any) -> None:
        super().__init__(_WithoutReplanning(downward_lib), pddl_problem, logic)
        self.downward_lib = downward_lib


class _WithoutReplanning:
    def __init__(self, downward_lib: Any) -> None:
        self._lib = downward_lib

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def load_sas_replan(self, sas: bytes) -> None:
        """Nothing to load."""


@lru_cache(maxsize=256)
def _game_logic(domain: str, grammar: str) -> Any:
    """``GameLogic(domain, grammar)``, the same object for the same text: the rules are read, never changed."""
    parts = split_task(grammar)
    skeleton = _skeleton(domain, parts[0], parts[2]) if parts else None
    if parts is None or skeleton is None:
        return _StockLogic(domain, grammar)
    logic = copy.copy(skeleton)
    logic.types = copy.deepcopy(skeleton.types)
    logic.grammar = textgen.ContextSensitiveGrammar()
    logic.grammar._rules.update(skeleton.grammar._rules)
    logic.grammar._rules["task"] = [_task_rule(parts[1])]
    return logic


@lru_cache(maxsize=8)
def _skeleton(domain: str, before: str, after: str) -> Any:
    """The logic of the grammar ``before + sentence + after`` for some plain sentence; None if it depends on it in
    more than the one rule that states the task."""
    logic = _StockLogic(domain, before + _PROBE + after)
    rules = logic.grammar._rules
    stated = [name for name, options in rules.items() if _PROBE in repr(options)]
    return logic if stated == ["task"] and repr(rules["task"]) == repr([_task_rule(_PROBE)]) else None


def _task_rule(sentence: str) -> Any:
    """The rule as the full parse builds it: a plain sentence means the same to JSON and to the template parser."""
    symbols = _stock_parse(f"Your task is to: {sentence}", rule_name="symbols")
    return textgen.ProductionRule(lhs="task", rhs=symbols, weight=1, condition="")


# -- text generation -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _parsed(text: str, rule_name: str | None) -> tuple[Any, ...]:
    return tuple(_stock_parse(text, rule_name=rule_name))


def _parse(text: str, rule_name: str | None = None, **_: Any) -> list[Any]:
    return [_copy_symbol(symbol) for symbol in _parsed(text, rule_name)]


@lru_cache(maxsize=4096)
def _parse_query(expression: str) -> Rule:
    return _stock_query(expression)


def _copy_context(context: dict[str, Any]) -> dict[str, Any]:
    return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}


def _copy_symbols(value: Any) -> Any:
    """Stands in for ``deepcopy`` in text generation, where it copies a symbol or a list of symbols."""
    if isinstance(value, list):
        return [_copy_symbols(item) for item in value]
    return _copy_symbol(value) if isinstance(value, textgen.Symbol) else _stock_deepcopy(value)


def _copy_symbol(symbol: Any) -> Any:
    """A copy that may be given a context of its own; nested symbols get one too."""
    duplicate = copy.copy(symbol)
    duplicate.context = {}
    if isinstance(symbol, textgen.ListSymbol):
        duplicate.symbol = _copy_symbol(symbol.symbol)
    elif isinstance(symbol, textgen.ConditionalSymbol):
        duplicate.expression = _copy_symbol(symbol.expression)
    return duplicate
