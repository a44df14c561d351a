"""The manifest of a data set: what was asked for, from which inputs, and what came out; written last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from agent_system.files import file_sha256
from rsipo.problems import UserError
from rsipo.searchdata.files import write_json

MANIFEST = "manifest.json"
#: Raised when the same choices give other rows than before.
BUILDER_VERSION = 1


def describe_file(path: Path) -> dict[str, Any]:
    """Name, size in bytes and hash of a file."""
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": file_sha256(path)}


def make_request(builder: str, options: Mapping[str, Any], inputs: Mapping[str, Path]) -> dict[str, Any]:
    """Everything the result depends on. Equal requests give equal bytes."""
    return {
        "builder": builder,
        "builder_version": BUILDER_VERSION,
        "pyarrow": pa.__version__,
        "options": dict(options),
        "inputs": {name: describe_file(path) for name, path in inputs.items()},
    }


def already_built(folder: Path, request: Mapping[str, Any], *, force: bool) -> bool:
    """Whether ``folder`` holds what ``request`` asks for, with every output as it was written.

    Raises:
        UserError: it holds something else, and ``force`` is not set.
    """
    path = folder / MANIFEST
    if not path.exists():
        return False
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        same = found["request"] == json.loads(json.dumps(request))
        intact = all(
            (folder / name).is_file() and file_sha256(folder / name) == entry["sha256"]
            for name, entry in found["outputs"].items()
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        same = intact = False
        found = {}
    if same and intact:
        return True
    if not same and not force:
        raise UserError(
            f"{folder} holds another data set ({_difference(found, request)}); choose another --out, or give --force"
        )
    return False


def write_manifest(
    folder: Path, request: Mapping[str, Any], results: Mapping[str, Any], outputs: Mapping[str, int | None]
) -> dict[str, dict[str, Any]]:
    """Write the manifest and return what it says of the outputs: file name -> ``bytes``, ``sha256``, ``rows``.

    Args:
        folder: where the outputs are.
        request: of :func:`make_request`.
        results: counts and other facts about the outcome.
        outputs: file name -> number of rows, None for a file without rows.
    """
    described = {}
    for name, rows in outputs.items():
        entry = describe_file(folder / name)
        del entry["file"]
        described[name] = entry if rows is None else {**entry, "rows": rows}
    write_json(folder / MANIFEST, {"request": request, "results": results, "outputs": described})
    return described


def _difference(found: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    """The first thing that differs, in words."""
    old = found.get("request")
    if not isinstance(old, Mapping):
        return "its manifest cannot be read"
    for section in ("options", "inputs"):
        before, after = old.get(section) or {}, request.get(section) or {}
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                if section == "inputs":
                    return f"input {name} has changed"
                return f"{name} was {before.get(name)!r}, now {after.get(name)!r}"
    return "made by another version"
