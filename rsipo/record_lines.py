"""Files of records, ``*.jsonl.gz``: equal records give equal bytes."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_system.files import replacing
from rsipo.problems import UserError

Record = Mapping[str, Any]


def write_records(path: Path, records: Iterable[Record]) -> int:
    """Write the records atomically, one JSON object per line; returns how many there were.

    The gzip header holds neither a time nor a name, so nothing but the records (and zlib) decides the bytes.
    """
    count = 0
    with (
        replacing(path) as temporary,
        temporary.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as file,
    ):
        for record in records:
            line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
            file.write(line.encode("utf-8", "backslashreplace"))  # a response may hold half a surrogate pair
            count += 1
    return count


def read_records(path: Path, remedy: str = "make it again") -> Iterator[dict[str, Any]]:
    """The records of a file, one by one.

    Args:
        remedy: what to do about a file that is missing or damaged.

    Raises:
        UserError: there is no such file, it is cut off or damaged, or a line is no JSON object.
    """
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                number += 1
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError("not a JSON object")
                yield record
    except FileNotFoundError:
        raise UserError(f"{path} is missing; {remedy}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is cut off or damaged after line {number} ({error}); {remedy}") from error
    except ValueError as error:
        raise UserError(f"{path} cannot be read at line {max(number, 1)} ({error}); {remedy}") from error


def read_json(path: Path, remedy: str = "make it again") -> dict[str, Any]:
    """A JSON object.

    Raises:
        UserError: there is no such file, or it holds anything else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; {remedy}") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); {remedy}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object; {remedy}")
    return value
