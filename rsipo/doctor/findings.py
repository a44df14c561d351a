"""What the doctor found, one line each, and the table of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.markup import escape
from rich.table import Table

Level = Literal["ok", "warn", "fail"]

_STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. A ``fail`` stops a run, a ``warn`` does not; both have a remedy."""

    area: str
    what: str
    level: Level
    found: str
    remedy: str = ""


def findings_table(findings: Sequence[Finding]) -> Table:
    """All findings by area, in the order they were made."""
    table = Table("", "checked", "state", "found", title="rsipo doctor", title_justify="left")
    area = ""
    for finding in findings:
        if finding.area != area and area:
            table.add_section()
        text = escape(finding.found) + (f"\n[bold]→ {escape(finding.remedy)}[/bold]" if finding.remedy else "")
        label = finding.area if finding.area != area else ""
        table.add_row(label, escape(finding.what), f"[{_STYLE[finding.level]}]{finding.level}[/]", text)
        area = finding.area
    return table


def verdict(findings: Sequence[Finding]) -> str:
    """The last line: how many of each level."""
    count = {level: sum(finding.level == level for finding in findings) for level in ("ok", "warn", "fail")}
    return f"{count['ok']} ok, {count['warn']} warning(s), {count['fail']} failure(s)"
