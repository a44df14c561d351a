"""What the data scripts share: options of several of them, and one clear line for an error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console

from rsipo.cli import read_environment
from rsipo.problems import UserError

LocalDir = Annotated[Path, typer.Option("--local_dir", help="Folder to write into.")]
Endpoint = Annotated[
    Optional[str], typer.Option("--endpoint", help="Hub or mirror; default HF_ENDPOINT, else the hub.")
]
Revision = Annotated[str, typer.Option("--revision", help="Branch, tag or commit of the repositories.")]
Checksums = Annotated[
    Optional[Path], typer.Option("--sha256sums", help="'SHA256  NAME' lines; they win over what the server says.")
]
Unverified = Annotated[bool, typer.Option("--allow_unverified", help="Take files for which there is no checksum.")]
Attempts = Annotated[int, typer.Option("--attempts", min=1, help="Failures in a row before giving up.")]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, help="Seconds of silence before a connection is dropped.")
]
Check = Annotated[bool, typer.Option("--check", help="Also read files that are there already, and compare.")]
Force = Annotated[bool, typer.Option("--force", help="Replace another data set in the folder.")]
Out = Annotated[Path, typer.Option("--out", help="Folder to write into.")]


def make_console() -> Console:
    """Where a script speaks: no wrapping of paths, no colouring of numbers."""
    return Console(soft_wrap=True, highlight=False)


def run_script(command: Callable[..., Any]) -> None:
    """Run a script's command: ``.env`` is read, and an error that the user can put right is one line, exit status 2."""
    name = Path(sys.argv[0]).name
    try:
        read_environment(Path(".env"))
        typer.run(command)
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except OSError as error:  # a folder that cannot be written, a full disk
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
