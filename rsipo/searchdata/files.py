"""JSON files of the data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agent_system.files import write_atomically


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically: sorted keys, so that equal values give equal bytes."""
    write_atomically(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")
