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


class _Malformed(Exception):
    pass


def objects(text: str) -> Iterator[dict[str, Any]]:
    """Every object in ``text``, in order, an outer one before those nested in it.

    Of a repeated key the last value counts, as in JSON readers. Values are dict, list, number, bool, None or
    ``SpannedString``.
    """
    position = text.find("{")
    while position >= 0:
        try:
            value, end = _object(text, position, 0)
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


def _value(text: str, position: int, depth: int) -> tuple[Any, int]:
    start = _skip(text, position)
    head = text[start : start + 1]
    if head == "{":
        return _object(text, start, depth)
    if head == "[":
        return _array(text, start, depth)
    if head and head in "\"'":
        return _string(text, start)
    word = _WORD.match(text, start)
    if word is None:
        raise _Malformed
    if word[0] in _CONSTANTS:
        return _CONSTANTS[word[0]], word.end()
    try:
        return json.loads(word[0]), word.end()
    except ValueError:
        raise _Malformed from None


def _object(text: str, position: int, depth: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    position = _open(text, position, depth)
    while text[position : position + 1] != "}":
        key, position = _string(text, position)
        position = _skip(text, position)
        if text[position : position + 1] != ":":
            raise _Malformed
        found[key.value], position = _value(text, position + 1, depth + 1)
        position = _separator(text, position, "}")
    return found, position + 1


def _array(text: str, position: int, depth: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    position = _open(text, position, depth)
    while text[position : position + 1] != "]":
        item, position = _value(text, position, depth + 1)
        found.append(item)
        position = _separator(text, position, "]")
    return found, position + 1


def _open(text: str, position: int, depth: int) -> int:
    if depth > _MAX_DEPTH:
        raise _Malformed
    return _skip(text, position + 1)


def _separator(text: str, position: int, closing: str) -> int:
    """Step over a comma, if any, to the next member or to the closing bracket."""
    position = _skip(text, position)
    if text[position : position + 1] == ",":
        return _skip(text, position + 1)
    if text[position : position + 1] != closing:
        raise _Malformed
    return position


def _string(text: str, position: int) -> tuple[SpannedString, int]:
    match = _STRING.match(text, position)
    if match is None:
        raise _Malformed
    start, end = match.span()
    return SpannedString(_decode(match[0]), (start + 1, end - 1)), end


def _decode(literal: str) -> str:
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


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position
