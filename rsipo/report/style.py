"""How figures look: one palette for light and dark, and from a matplotlib figure to PNG and to SVG that follows the page.

Figures are drawn once, in the light colours. A PNG keeps them, on white. In the SVG every colour of the palette becomes a
CSS variable, so the page decides between light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

PALETTE: dict[str, tuple[str, str]] = {
    "ink": ("#1d2433", "#e7eaf1"),
    "muted": ("#5b6577", "#a3adbf"),
    "grid": ("#e2e6ee", "#2f3747"),
    "series-1": ("#2663d1", "#7fabff"),
    "series-2": ("#c65a06", "#ffa45c"),
    "series-3": ("#0b7d5f", "#4fd0a4"),
    "series-4": ("#8446c6", "#c79bff"),
    "series-5": ("#be2f6b", "#ff8db8"),
    "series-6": ("#0c7791", "#63cfe8"),
    "better": ("#128454", "#57d297"),
    "worse": ("#c23636", "#ff8783"),
}
"""Name of the CSS variable -> its (light, dark) colour. The light ones must differ, as they stand for the names."""

WINDOW = 10
"""Steps of a moving average (the paper's thick lines)."""

SIZE = (4.9, 3.0)
"""Inches of one panel; a page shows one to three beside each other."""

_SERIES = [name for name in PALETTE if name.startswith("series-")]
_DASHES = ("-", "--", ":", "-.")

_RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.edgecolor": PALETTE["muted"][0],
    "axes.labelcolor": PALETTE["muted"][0],
    "text.color": PALETTE["ink"][0],
    "xtick.color": PALETTE["muted"][0],
    "ytick.color": PALETTE["muted"][0],
    "grid.color": PALETTE["grid"][0],
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 2.2,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "text.parse_math": False,  # a run's name may hold a dollar sign
}


def color(name: str) -> str:
    """The light colour of a palette entry, which stands for the entry."""
    return PALETTE[name][0]


def series_color(index: int) -> str:
    """Name of the ``index``-th series' colour in the palette."""
    return _SERIES[index % len(_SERIES)]


def series_style(index: int) -> dict[str, Any]:
    """Colour, and beyond the sixth series dashes, of the ``index``-th series."""
    return {
        "color": color(series_color(index)),
        "linestyle": _DASHES[index // len(_SERIES) % len(_DASHES)],
    }


@contextmanager
def figure_style() -> Iterator[None]:
    """matplotlib's settings of all figures; everything that draws or saves happens inside."""
    with matplotlib.rc_context(_RC):
        yield


def panel(*, height: float = SIZE[1]) -> tuple[Figure, Axes]:
    """An empty figure of one panel; ``height`` in inches."""
    figure = Figure(figsize=(SIZE[0], height), layout="constrained")
    return figure, figure.add_subplot()


def share_axis(axes: Axes, label: str = "", *, top: float | None = 1.02) -> None:
    """A vertical axis of shares; ``top`` None leaves its limits to the data."""
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylabel(label)
    if top is not None:
        axes.set_ylim(-0.02, top)


def line_style(index: int, steps: int) -> dict[str, Any]:
    """``series_style`` of a curve over so many steps: a single step, which no line joins to another, is a point."""
    return series_style(index) | ({"marker": "o"} if steps == 1 else {})


def step_axis(axes: Axes) -> None:
    """A horizontal axis of training steps."""
    axes.set_xlabel("training step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, min_n_ticks=1))


def legend(axes: Axes, entries: int) -> None:
    """Above the panel, where it hides no curve; none for a single entry."""
    if entries > 1:
        columns = 2 if entries < 7 else 3
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderaxespad=0.2, handlelength=1.6)


def to_png(figure: Figure, title: str) -> bytes:
    """On white, 200 dots per inch, under its title (which the page sets as text). Call it after ``to_svg``."""
    buffer = io.BytesIO()
    figure.suptitle(title, x=0.02, ha="left", fontsize=11, fontweight="bold")
    figure.savefig(buffer, format="png", dpi=200, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def to_svg(figure: Figure, name: str, label: str) -> str:
    """An ``<svg>`` element for inlining: themed by CSS variables, ids unique to ``name``, ``label`` for screen readers."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", facecolor="none", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    # The style element is for the whole page then; the stylesheet has its rule for figures alone.
    svg = re.sub(r"<(metadata|style)\b.*?</\1>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda found: _VARIABLES.get(found[0], found[0]), svg)
    opening = f'<svg role="img" aria-label="{_attribute(label)}" class="figure" '
    svg = re.sub(r'\s(?:width|height)="[^"]*pt"', "", svg, count=2)  # the page decides, the viewBox stays
    return svg.replace("<svg ", opening, 1)


def stylesheet() -> str:
    """The palette as CSS custom properties; ``light-dark()`` follows the page's ``color-scheme``."""
    return "\n".join(f"  --{name}: light-dark({light}, {dark});" for name, (light, dark) in PALETTE.items())


_VARIABLES = {light: f"var(--{name})" for name, (light, _) in PALETTE.items()}


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
