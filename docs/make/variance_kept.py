"""What docs/make/variance_study.py has measured, in one small file that stays with the project.

Means, standard errors, tuned step sizes and numbers of seeds of every cell and method are in
docs/make/variance.json, so that the page can be made again without running the study. What is in
the folder of results comes first; `keep` writes it into the file.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import variance_problems
from variance_problems import PRESETS, largest_step
from variance_study import METHODS, Cell, cells, path_of

from isfed.base.atomic_files import read_json, write_whole

KEPT = Path(__file__).parent / "variance.json"
DIGITS = 6


class Measured(NamedTuple):
    """Of one method in one cell."""

    mean: float  # of the msd (presets) or of the excess risk; inf if a seed diverged
    error: float  # its standard error
    step: float  # the step size that was best when tuned; the paper's for the presets
    seeds: int


def measured(cell: Cell, method: str) -> Measured | None:
    """From the folder of results, else from the file; None if it was never run."""
    place = path_of(cell, method)
    if place.exists():
        found = read_json(place)
        errors = [math.inf if e is None else e for e in found["errors"]]
        return _summary(errors, found["step"])
    row = kept().get(cell.name, {}).get(method)
    if row is None:
        return None
    mean, error, step, seeds = row
    if cell.problem in PRESETS:  # they are not tuned
        step = largest_step(cell.problem)
    return Measured(math.inf if mean is None else mean, error, step, seeds)


def _summary(errors: list[float], step: float) -> Measured:
    count = len(errors)
    if not np.isfinite(errors).all():
        return Measured(math.inf, 0.0, step, count)
    error = float(np.std(errors, ddof=1) / math.sqrt(count)) if count > 1 else 0.0
    # Rounded here too, so that the tables are the same from the folder and from the file.
    return Measured(_rounded(float(np.mean(errors))), _rounded(error), step, count)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


@cache
def kept() -> dict[str, dict[str, list]]:
    """What the file has: [mean, standard error, step size, seeds] by cell and method."""
    if variance_problems.PIXELS != 14 or not KEPT.exists():
        return {}
    return read_json(KEPT)


def keep() -> str:
    """Write what is known of every cell into the file, a line for each method."""
    if variance_problems.PIXELS != 14:
        raise SystemExit("only the study with 14 x 14 pixels is kept: leave --pixels out")
    parts = []
    for cell in cells():
        found = {m: r for m in METHODS if (r := measured(cell, m)) is not None}
        lines = [
            f"  {json.dumps(m)}: {json.dumps([r.mean if math.isfinite(r.mean) else None, *r[1:]])}"
            for m, r in found.items()
        ]
        if found:
            parts.append(f'"{cell.name}": {{\n' + ",\n".join(lines) + "\n}")
    write_whole(KEPT, ("{\n" + ",\n".join(parts) + "\n}\n").encode())
    kept.cache_clear()
    return f"{KEPT} has {sum(map(len, kept().values()))} measurements of {len(parts)} cells"
