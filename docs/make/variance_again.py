"""Is the best way of a column still the best with other seeds? The columns in which it was not
the recommended one, again.

    python docs/make/variance_again.py [--seeds 10] [--only TEXT]

In the columns of docs/appendix/variance.md where the recommendation is more than one error above
the lowest of the seventeen ways, both are run with seeds that nobody has looked at, at the step
sizes of the study. The lowest of many is lower than it deserves; with new seeds it is not. Results
are kept in docs/make/results/variance-again, and what is there is not run again.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from variance_kept import measured
from variance_page import as_text, heading, result, verdict
from variance_problems import PRESETS, largest_step
from variance_study import Cell, cells, errors, tune

from isfed.base.atomic_files import read_json, write_json

RESULTS = Path(__file__).parent / "results" / "variance-again"
FIRST_SEED = 20  # the study has 0 to 9


def misses() -> list[tuple[Cell, str, str]]:
    """The columns without absences, with the recommended way and the best."""
    judged = {cell: verdict(cell) for cell in cells() if not cell.absent}
    return [(cell, each.chosen, each.best) for cell, each in judged.items() if not each.good]


def again(cell: Cell, method: str, num_seeds: int) -> np.ndarray:
    """The errors with new seeds, at the step size of the study."""
    name = "".join(c if c.isalnum() else "-" for c in method)
    place = RESULTS / cell.name / f"{name}-{num_seeds}.json"
    if not place.exists():
        kept = measured(cell, method)
        step = largest_step(cell.problem) if cell.problem in PRESETS or not kept else kept.step
        if step is None:  # the study's first tables did not keep it
            tried = tune(cell, method, largest_step(cell.problem))
            step = min(tried, key=lambda s: tried[s])
        found = errors(cell, method, step, range(FIRST_SEED, FIRST_SEED + num_seeds))
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, {"step": step, "errors": found})
    return np.array(read_json(place)["errors"], float)


def shown(cell: Cell, found: np.ndarray) -> str:
    """Mean and standard error, as in the tables of the study."""
    return as_text(cell, float(found.mean()), float(found.std(ddof=1) / math.sqrt(found.size)))


def main() -> None:
    """Run, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    print("| | recommended | best of the study | over best, study | new seeds: recommended | best |"
          " recommended over best |\n" + "|---" * 7 + "|", flush=True)  # fmt: skip
    good = total = 0
    for cell, chosen, best in misses():
        if given.only not in cell.name:
            continue
        old = [r[0] for m in (chosen, best) if (r := result(cell, m)) is not None]
        new = [again(cell, m, given.seeds) for m in (chosen, best)]
        error = math.hypot(*(each.std(ddof=1) / math.sqrt(each.size) for each in new))
        within = new[0].mean() <= new[1].mean() + error
        good, total = good + within, total + 1
        ratio = f"{new[0].mean() / new[1].mean():.2f}"
        print(
            f"| {heading(cell)} | {chosen} | {best} | {old[0] / old[1]:.2f} | "
            f"{shown(cell, new[0])} | {shown(cell, new[1])} | "
            f"{ratio if within else f'**{ratio}**'} |",
            flush=True,
        )
    print(f"\nWith new seeds the recommendation is the better, or within one standard error, in "
          f"{good} of these {total} columns.")  # fmt: skip


if __name__ == "__main__":
    main()
