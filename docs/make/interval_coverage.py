"""How often 95% intervals for a total hold it, for every design and estimate of its variance.

    python docs/make/interval_coverage.py [--samples 2000] [--quick] [--page]

prints docs/appendix/intervals.md, or writes it with --page (about 10 minutes).
"""

from __future__ import annotations

import argparse
import math
import warnings
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from joblib import Parallel, delayed

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

HALL, HAJEK, HAJEK_HALL = "Hall", "Hájek total", "Hájek, Hall"
KINDS = (
    "sen-yates-grundy", "horvitz-thompson", "hajek", "deville", "brewer", "balanced",
    "hansen-hurwitz", HALL, HAJEK, HAJEK_HALL,
)  # fmt: skip
LEAST, MOST = 0.93, 0.97  # between which the coverage should be
# The variance that estimate_total takes where none is given, but for joint probabilities at hand.
DEFAULTS = {
    name: "deville"
    for name in ("Systematic", "Deville", "LocalPivotal", "HartleyRao", "Brewer", "Tille")
}
PAGE = Path(__file__).resolve().parent.parent / "appendix" / "intervals.md"
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


def cell(name: str, values, inclusion, drawn, *, kind: str, design, joint) -> str:
    """How often intervals held the truth, the bias of the variance, and what would mend it."""
    method, interval, variance = "horvitz-thompson", "student", kind
    if kind in (HALL, HAJEK, HAJEK_HALL):
        variance = None if joint is None else DEFAULTS.get(name)
        method = "horvitz-thompson" if kind == HALL else "hajek"
        interval = "student" if kind == HAJEK else "hall"
    found = []
    for units in drawn:
        try:
            result = estimate_total(
                values[units], units, inclusion, design=design, method=method, variance=variance,
                joint=joint, interval=interval,
            )  # fmt: skip
        except VarianceError:
            return "refused"
        found.append((result.value, result.stderr, result.low, result.high))
    totals, errors, low, high = np.array(found).T
    covered = coverages_of(values.sum(), totals, errors, low, high)
    ratio = float(np.nanmean(errors**2) / np.var(totals))
    return f"{100.0 * covered['']:.1f} ({ratio:.2f}){letters(covered, len(drawn))}"


def coverages_of(truth, totals, errors, low, high) -> dict[str, float]:
    """The coverage, and what it would be if one thing were otherwise."""
    spread, normal = float(np.std(totals)), NormalDist().inv_cdf(0.975)
    scale = spread / math.sqrt(np.nanmean(errors**2))  # makes the mean estimated variance true

    def held(below, above, seen=slice(None)) -> float:
        return float(np.mean((totals - below <= truth)[seen] & (truth <= totals + above)[seen]))

    return {
        "": held(totals - low, high - totals),
        "n": held(totals - low, high - totals, np.isfinite(errors)),
        "b": held(scale * (totals - low), scale * (high - totals)),
        "q": held(normal * errors, normal * errors),
        "e": held(normal * spread, normal * spread),
    }


def letters(coverages: dict[str, float], samples: int) -> str:
    """What brings a coverage between 93% and 97%, if it is not: see the legend."""

    def inside(coverage: float, errors: float = 0.0) -> bool:
        reach = errors * math.sqrt(coverage * (1.0 - coverage) / samples)
        return LEAST - reach <= coverage <= MOST + reach

    plain = coverages[""]
    if inside(plain):
        return ""
    if inside(plain, errors=2.0):
        return " m"
    return " " + ("".join(key for key, value in coverages.items() if inside(value)) or "x")


LEGEND = """\
# Appendix: how often intervals hold the truth

`python docs/make/interval_coverage.py --page` writes this page. It counts intervals of 95% for a
total, over {samples} samples per cell. The standard error of a coverage is {error:.1f} points.

Sizes are lognormal, and inclusion is proportional to size. Values are proportional to size but for
noise (*proportional*), or have a part that is not (*additive*), which small units carry with large
weights.

Each cell has the coverage in percent and, in brackets, the mean estimated variance over that of the
samples. The columns are the values of `variance=`. *Hall* is `interval="hall"` with the variance
that suits the design. *Hájek total* is `method="hajek"` with that variance, and the last column has
both. *Refused* means that the formula cannot be used, and isfed says so.

Where a coverage is not between 93% and 97%, letters say why. Each letter stands for one change that
alone, in the same samples, brings the coverage between them:

- **b**, bias: all standard errors times one factor, so that the estimated variance is right in the
  mean. It is too large where draws vary less than is supposed: `Systematic`, `Deville`,
  `LocalPivotal` and `Cube` spread them over units that are alike. It is too small for the Hájek
  total of few units, a ratio whose variance is taken to first order.
- **n**, negative: only samples whose variance is not estimated as negative. The others give no
  interval.
- **e**, error of the standard error: the true standard deviation in every sample, and the normal
  quantile. The estimate is nearly normal, but the standard error varies with it. Samples without
  small units of large weight give low totals and short intervals; Hall's interval allows for that.
  The variance of Horvitz and Thompson varies most, and is negative in some samples.
- **q**, quantile: that of the normal distribution for that of Student's t.
- **m**, marginal: within two standard errors of 93% or 97%.
- **x**: none of these alone.
"""


def table(samples: int, additive: float, count: int, num: int) -> str:
    """The table of one population."""
    warnings.simplefilter("ignore")  # of variances that are estimated as negative
    inclusion, values, known = made(count, num, additive=additive)
    lines = [
        f"\n## {'Additive' if additive else 'Proportional'}: {num} of {count} units\n",
        "| design | " + " | ".join(KINDS) + " |\n|---" + "|---" * len(KINDS) + "|",
    ]
    for name, design, chances in designs(inclusion, known):
        joint = None if isinstance(design, WithReplacement) else design.joint(chances)
        stream = Stream(1)
        drawn = [design.draw(chances, stream) for _ in range(samples)]
        cells = [
            cell(name, values, chances, drawn, kind=kind, design=design, joint=joint)
            for kind in KINDS
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(samples: int, *, quick: bool) -> str:
    """The page, its tables made on all cores."""
    error = 100 * math.sqrt(0.95 * 0.05 / samples)
    cases = [(part, *case) for part in (0.0, 2.0) for case in CASES]
    found: Any = Parallel(n_jobs=-1)(
        delayed(table)(samples, *case) for case in (cases[:1] if quick else cases[::-1])
    )
    tables: list[str] = list(found)
    return "\n".join([LEGEND.format(samples=samples, error=error), *tables[::-1]]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="the smallest population only")
    parser.add_argument("--page", action="store_true", help="write docs/appendix/intervals.md")
    given = parser.parse_args()
    text = page(given.samples, quick=given.quick)
    print(text)
    if given.page:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
