"""``rsipo audit verify``."""

from __future__ import annotations

from pathlib import Path

from rsipo.audit.verify import verify_run


def verify_command(run: Path) -> int:
    """Print the report; the exit status is 0 for an audit that holds, else 1. Raises UserError without an audit."""
    report = verify_run(run)
    print(report)
    return 0 if report.ok else 1
