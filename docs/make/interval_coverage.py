"""How often 95% intervals for a total hold it, for every design and estimate of its variance.

    python docs/make/interval_coverage.py [--samples 2000] [--quick] [--page]

prints docs/appendix/intervals.md, or writes it with --page (about 8 minutes).
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
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

HAJEK = "Hájek total"
KINDS = (
    "sen-yates-grundy", "horvitz-thompson", "hajek", "deville", "brewer", "balanced",
    "hansen-hurwitz", HAJEK,
)  # fmt: skip
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
    """How often intervals held the truth, the bias of the variance, and why it was not 95%."""
    truth, method, variance = values.sum(), "horvitz-thompson", kind
    if kind == HAJEK:
        method, variance = "hajek", None if joint is None else DEFAULTS.get(name)
    held, totals, errors = 0, [], []
    for units in drawn:
        try:
            result = estimate_total(
                values[units], units, inclusion, design=design, method=method, variance=variance,
                joint=joint,
            )  # fmt: skip
        except VarianceError:
            return "refused"
        held += result.low <= truth <= result.high
        totals.append(result.value)
        errors.append(result.stderr)
    coverage = 100.0 * held / len(drawn)
    seen = np.isfinite(errors)
    ratio = float(np.mean(np.square(errors)[seen]) / np.var(totals))
    together = float(np.corrcoef(np.array(totals)[seen], np.array(errors)[seen])[0, 1])
    why = "" if 93.0 <= coverage <= 97.0 else " " + reason(coverage, ratio, seen.mean(), together)
    return f"{coverage:.1f} ({ratio:.2f}){why}"


def reason(coverage: float, ratio: float, seen: float, together: float) -> str:
    """A letter of the legend."""
    if seen < 0.995:
        return "n"
    if 92.0 <= coverage <= 98.0 and 0.9 < ratio < 1.1 and abs(together) < 0.3:
        return "m"
    if coverage > 97.0:
        return "c" if ratio > 1.1 else "t"
    if ratio < 0.9:
        return "u"
    return "s" if abs(together) >= 0.3 else "?"


LEGEND = """\
# Appendix: how often intervals hold the truth

`python docs/make/interval_coverage.py --page` writes this page. It counts intervals of 95% for a
total, over {samples} samples per cell. The standard error of a coverage is {error:.1f} points.

Sizes are lognormal, and inclusion is proportional to size. Values are proportional to size but for
noise (*proportional*), or have a part that is not (*additive*), which small units carry with large
weights.

Each cell has the coverage in percent and, in brackets, the mean estimated variance over that of the
samples. The columns are the values of `variance=`; the last is the Hájek total with the variance
that suits the design. *Refused* means that the formula cannot be used, and isfed says so. A letter
suggests why a coverage is not between 93% and 97%. The rules for the letters were set after first
results; they describe the cells and prove no cause:

- **c**, cautious: draws that are spread over the units, or balanced, vary less than is supposed.
- **s**, skewed: small units with large weights move the estimate and its standard error together.
  Samples without them give low estimates and short intervals. The variance itself has little bias;
  more units help.
- **n**, negative: the variance was estimated as negative in some samples, which give no interval.
- **t**: few units or clusters, for which Student's t is wider than needed.
- **u**, underestimated: the Hájek total is a ratio, whose variance is taken to first order. Of few
  units that is too small, and so is Hájek's approximation in strata of few units.
- **m**, marginal: within two standard errors of 93% or 97%.
"""


def page(samples: int, *, quick: bool) -> Iterator[str]:
    """The page, line by line."""
    error = 100 * math.sqrt(0.95 * 0.05 / samples)
    yield LEGEND.format(samples=samples, error=error)
    cases = [(part, *case) for part in (0.0, 2.0) for case in CASES]
    for additive, count, num in cases[: 1 if quick else None]:
        inclusion, values, known = made(count, num, additive=additive)
        yield f"\n## {'Additive' if additive else 'Proportional'}: {num} of {count} units\n"
        yield "| design | " + " | ".join(KINDS) + " |\n|---" + "|---" * len(KINDS) + "|"
        for name, design, chances in designs(inclusion, known):
            joint = None if isinstance(design, WithReplacement) else design.joint(chances)
            stream = Stream(1)
            drawn = [design.draw(chances, stream) for _ in range(samples)]
            cells = [
                cell(name, values, chances, drawn, kind=kind, design=design, joint=joint)
                for kind in KINDS
            ]
            yield f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="the smallest population only")
    parser.add_argument("--page", action="store_true", help="write docs/appendix/intervals.md")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # of variances that are estimated as negative
    lines = []
    for line in page(given.samples, quick=given.quick):
        print(line, flush=True)
        lines.append(line)
    if given.page:
        PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
