"""How often 95% intervals for a total hold it, for every design and estimate of its variance.

    python benchmarks/interval_coverage.py [--samples 2000] [--quick]

Populations are skewed: sizes are lognormal, and inclusion is proportional to size. Values are
proportional to size but for noise ("proportional"), or have a part that is not ("additive"), which
small units then carry with large weights.

Per cell: how often the interval of the Horvitz-Thompson total held the truth, and in brackets the
mean estimated variance over that of the samples. A variance that is estimated as negative gives no
interval: it counts as a miss, and is left out of the mean.
"""

from __future__ import annotations

import argparse
import math
import warnings
from typing import Any

import numpy as np

from isfed.base.random_streams import Stream
from isfed.sampling import (
    Brewer,
    Clustered,
    ConditionalPoisson,
    Cube,
    Deville,
    HartleyRao,
    LocalPivotal,
    Poisson,
    Sampford,
    Stratified,
    Systematic,
    Tille,
    VarianceError,
    WithReplacement,
    estimate_total,
    inclusion_probabilities,
)

KINDS = (
    "sen-yates-grundy", "horvitz-thompson", "hajek", "deville", "brewer", "balanced",
    "hansen-hurwitz",
)  # fmt: skip
CASES = ((50, 10), (200, 30), (1000, 100))  # units, and how many are drawn


def made(count: int, num: int, *, additive: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inclusion, values and a variable that is known for all units."""
    rng = np.random.default_rng(count)
    sizes = np.sort(rng.lognormal(0.0, 0.7, count))
    known = rng.gamma(4.0, 1.0, count)
    values = sizes * (4.0 + known + 2.0 * rng.normal(size=count)) + additive * known
    return inclusion_probabilities(sizes, num), values, known


def designs(inclusion: np.ndarray, known: np.ndarray) -> list[tuple[str, Any, np.ndarray]]:
    """The name of each design, itself, and its inclusion probabilities."""
    count, num = inclusion.size, round(inclusion.sum())
    plain = [
        Systematic(), Deville(), LocalPivotal(known), HartleyRao(), Sampford(),
        ConditionalPoisson(), Brewer(), Tille(), Poisson(), WithReplacement(), Cube(known),
    ]  # fmt: skip
    found = [(type(design).__name__, design, inclusion) for design in plain]
    strata = np.arange(count) % 2
    apart = np.empty(count)
    for label in (0, 1):
        inside = strata == label
        apart[inside] = inclusion_probabilities(inclusion[inside], num // 2)
    found.append(("Stratified", Stratified(ConditionalPoisson(), strata), apart))
    clusters = np.arange(count) // 2
    sizes = np.bincount(clusters, weights=inclusion)
    whole = inclusion_probabilities(sizes, num // 2)[clusters]
    found.append(("Clustered", Clustered(ConditionalPoisson(), clusters), whole))
    return found


def cell(design, inclusion, values, *, kind: str, joint, drawn: list[np.ndarray]) -> str:
    """One design and one estimate of its variance."""
    truth = values.sum()
    held, totals, squares = 0, [], []
    for units in drawn:
        try:
            found = estimate_total(
                values[units], units, inclusion, design=design, variance=kind, joint=joint
            )
        except VarianceError:
            return "refused"
        held += found.low <= truth <= found.high
        totals.append(found.value)
        squares.append(found.stderr**2)
    return f"{100 * held / len(drawn):.1f} ({np.nanmean(squares) / np.var(totals):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="the smallest population only")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # of variances that are estimated as negative
    print(f"standard error of a coverage: {100 * math.sqrt(0.95 * 0.05 / given.samples):.1f}%")
    cases = [(part, *case) for part in (0.0, 2.0) for case in CASES]
    for additive, count, num in cases[: 1 if given.quick else None]:
        inclusion, values, known = made(count, num, additive=additive)
        print(f"\n{'additive' if additive else 'proportional'}: {num} of {count} units\n")
        print("| design | " + " | ".join(KINDS) + " |\n|---" + "|---" * len(KINDS) + "|")
        for name, design, chances in designs(inclusion, known):
            joint = None if isinstance(design, WithReplacement) else design.joint(chances)
            stream = Stream(1)
            drawn = [design.draw(chances, stream) for _ in range(given.samples)]
            cells = [
                cell(design, chances, values, kind=kind, joint=joint, drawn=drawn) for kind in KINDS
            ]
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
