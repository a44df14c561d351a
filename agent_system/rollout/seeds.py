"""Seeds derived from names: the same (run seed, step, task, …) gives the same number on every machine and process."""

from __future__ import annotations

import hashlib
import json

_MASK = 0x7FFF_FFFF  # 31 bits: the widest range that every backend takes as a non-negative seed


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**31) from a sequence of integers and strings.

    The encoding tells 1 from "1" and ("a", "b") from ("ab",), so different names give independent seeds. The value
    depends neither on PYTHONHASHSEED nor on the Python version.

    Raises:
        TypeError: a part that is neither an int nor a str.
    """
    for part in parts:
        if not isinstance(part, int | str):
            raise TypeError(f"a seed is derived from integers and strings, not from {part!r}")
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:4], "big") & _MASK
