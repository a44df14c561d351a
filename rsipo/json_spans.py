"""A tolerant reader of the JSON that language models write, which keeps where every string value stood in the text.

Tolerated beside JSON itself: text around the object, code fences, trailing commas, raw line breaks inside strings, and
Python literals (single quotes, True, False, None). Nothing is repaired that would change what was said.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_MAX_DEPTH = 32
_SPACE = re.compile(r"\s*")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|' r"'[^'\\]*(?:\\.[^'\\]*)*'", re.DOTALL)
_WORD = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[A-Za-z]+")
_CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


@dataclass(frozen=True, slots=True)
class SpannedString:
    """A string value. ``span`` is [start, end) of the characters between its quotes, escapes as written."""

    value: str
    span: tuple[int, int]


def objects(text: str) -> Iterator[dict[str, Any]]:
    """Every object in ``text``, in order, an outer one before those nested in it.

    Of a repeated key the last value counts, as in JSON readers. Values are dict, list, number, bool, None or
    ``SpannedString``.
    """
    reader = _Reader(text)
    position = text.find("{")
    while position >= 0:
        try:
            value, end = reader.object(position, 0)
        except _Malformed:
            end = position + 1
        else:
            yield from _nested(value)
        position = text.find("{", end)


def _nested(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _nested(item)


class _Malformed(Exception):
    pass


class _Reader:
    """Recursive descent over one text. Every method takes a position and returns (value, position after it)."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._failed: set[int] = set()  # objects known to be malformed: trying each again would cost quadratic time

    def object(self, start: int, depth: int) -> tuple[dict[str, Any], int]:
        if depth > _MAX_DEPTH or start in self._failed:
            raise _Malformed
        found: dict[str, Any] = {}
        try:
            position = self._skip(start + 1)
            while self._at(position) != "}":
                key, position = self._string(position)
                position = self._skip(position)
                if self._at(position) != ":":
                    raise _Malformed
                found[key.value], position = self._value(position + 1, depth + 1)
                position = self._separator(position, "}")
        except _Malformed:
            self._failed.add(start)
            raise
        return found, position + 1

    def _array(self, start: int, depth: int) -> tuple[list[Any], int]:
        if depth > _MAX_DEPTH:
            raise _Malformed
        found: list[Any] = []
        position = self._skip(start + 1)
        while self._at(position) != "]":
            item, position = self._value(position, depth + 1)
            found.append(item)
            position = self._separator(position, "]")
        return found, position + 1

    def _value(self, position: int, depth: int) -> tuple[Any, int]:
        start = self._skip(position)
        head = self._at(start)
        if head == "{":
            return self.object(start, depth)
        if head == "[":
            return self._array(start, depth)
        if head in ('"', "'"):
            return self._string(start)
        word = _WORD.match(self._text, start)
        if word is None:
            raise _Malformed
        if word[0] in _CONSTANTS:
            return _CONSTANTS[word[0]], word.end()
        try:
            return json.loads(word[0]), word.end()
        except ValueError:
            raise _Malformed from None

    def _string(self, start: int) -> tuple[SpannedString, int]:
        match = _STRING.match(self._text, start)
        if match is None:
            raise _Malformed
        return SpannedString(_decode(match[0]), (start + 1, match.end() - 1)), match.end()

    def _separator(self, position: int, closing: str) -> int:
        """Step over a comma, if any, to the next member or to the closing bracket."""
        position = self._skip(position)
        if self._at(position) == ",":
            return self._skip(position + 1)
        if self._at(position) != closing:
            raise _Malformed
        return position

    def _at(self, position: int) -> str:
        return self._text[position : position + 1]

    def _skip(self, position: int) -> int:
        match = _SPACE.match(self._text, position)
        return match.end() if match else position


def _decode(literal: str) -> str:
    """The value of a quoted string, JSON's or Python's."""
    try:
        if literal[0] == '"':
            return str(json.loads(literal, strict=False))
    except ValueError:
        pass  # an escape that JSON does not know, such as \' : Python may know it
    try:
        # Raw line breaks are legal in the JSON we accept but not in a Python literal.
        return str(ast.literal_eval(literal.replace("\r", "\\r").replace("\n", "\\n")))
    except (ValueError, SyntaxError):
        raise _Malformed from None
