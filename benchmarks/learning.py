"""Does the embedded policy learn? Train it with several seeds and compare held-out success before and after.

    python benchmarks/learning.py --seeds 4 [--steps 16] [KEY=VALUE ...]
    python benchmarks/learning.py --environment search --seeds 3 --steps 30

Each seed is one ``rsipo train`` run on generated games or questions; its student plays every held-out task ``--repeats`` times,
without a skill, before the first and after the last step. Intervals are 95 % Wilson intervals over episodes. Runs that are
already complete are not trained again.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rsipo.run_files import RunFiles, read_metrics
from rsipo.specs import BENCHMARKS


def wilson(successes: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a success rate."""
    rate = successes / count
    centre = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return centre - half, centre + half


def train(seed: int, arguments: argparse.Namespace) -> RunFiles:
    """One run, or the finished one that is there."""
    name = f"{arguments.name}-{arguments.environment}-seed{seed}"
    files = RunFiles(Path(os.environ.get("RSIPO_WORK", "outputs")) / "runs" / name)
    rows = read_metrics(files.metrics)
    if not rows or rows[-1]["step"] < arguments.steps:
        command = [
            sys.executable, "-m", "rsipo.cli", "train", arguments.environment, f"run.name={name}", f"run.seed={seed}",
            f"training.steps={arguments.steps}",
            "evaluation.at_start=true", "evaluation.at_end=true", "evaluation.every=0",
            f"evaluation.repeats={arguments.repeats}", "run.resume=auto", *arguments.overrides,
        ]  # fmt: skip
        subprocess.run(command, check=True)
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", choices=BENCHMARKS, default=BENCHMARKS[0])
    parser.add_argument("--seeds", type=int, default=4, help="seeds 0, 1, … are trained")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=2, help="episodes per held-out task and evaluation")
    parser.add_argument("--name", default="learning")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()

    table = Table("seed", "before", "95 % interval", "after", "95 % interval", "episodes", "difference")
    higher = 0
    for seed in range(arguments.seeds):
        rows = [row for row in read_metrics(train(seed, arguments).metrics) if "evaluation/success" in row]
        cells = [str(seed)]
        for row in (rows[0], rows[-1]):
            count = row["evaluation/episodes"]
            low, high = wilson(row["evaluation/success"] * count, count)
            cells += [f"{row['evaluation/success']:.1%}", f"{low:.1%} – {high:.1%}"]
        difference = rows[-1]["evaluation/success"] - rows[0]["evaluation/success"]
        higher += difference > 0
        table.add_row(*cells, str(rows[-1]["evaluation/episodes"]), f"{difference:+.1%}")
    console = Console(width=120)
    console.print(table)
    console.print(f"higher after training: {higher} of {arguments.seeds} seeds ({arguments.steps} steps)")


if __name__ == "__main__":
    main()
