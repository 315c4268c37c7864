"""Totals and means of a population, estimated from a draw, with standard errors and intervals."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from isfed.base.argument_checks import as_numbers, is_number, shown
from isfed.sampling.designs import Clustered, Cube, Stratified
from isfed.sampling.designs.inclusion import (
    check_design,
    check_inclusion,
    check_scores,
    check_total,
)
from isfed.sampling.skewness import hall_quantiles, third_moment

BY_PAIRS = ("horvitz-thompson", "sen-yates-grundy")
BY_UNITS = ("hajek", "deville", "brewer")
KINDS = (*BY_PAIRS, *BY_UNITS, "hansen-hurwitz", "balanced")
ROUNDING = 1e-12  # a joint probability so much smaller than independent units have is zero
INSTEAD = (
    "use variance='deville', 'hajek' or 'brewer', which need no pairs, or draw with "
    "ConditionalPoisson() or Sampford(), under which all pairs are possible"
)
MOST_PAIRED = 1000  # units up to which pairs are used where no kind of variance is given
METHODS = ("horvitz-thompson", "hajek")
INTERVALS = ("student", "hall")


class VarianceError(ValueError):
    """The variance cannot be estimated by this formula; the message names another."""


class JointWarning(UserWarning):
    """The variance could only be approximated, or came out negative."""


@dataclass(frozen=True)
class Estimate:
    """An estimate with its standard error and its interval.

    Attributes:
        value: the estimate.
        stderr: its standard error; NaN where the variance was estimated as negative.
        low: where the interval begins.
        high: where it ends.
        confidence: how often such intervals should hold the truth.
        degrees: of freedom of Student's t.
        method: "horvitz-thompson" or "hajek".
        variance: how the variance was estimated.
    """

    value: float
    stderr: float
    low: float
    high: float
    confidence: float
    degrees: float
    method: str
    variance: str


def estimate_total(
    values: ArrayLike, units: ArrayLike, inclusion: ArrayLike, *, design: Any,
    method: str = "horvitz-thompson", variance: str | None = None,
    joint: np.ndarray | None = None, confidence: float = 0.95, interval: str = "student",
) -> Estimate:  # fmt: skip
    """Estimate the total of a population from the values of the units drawn.

    Args:
        values: (n,) the values seen, in the order of `units`.
        units: (n,) the units drawn.
        inclusion: (N,) the inclusion probabilities of the whole population.
        design: the design that drew the units.
        method: "horvitz-thompson", the sum of values over inclusion, is unbiased. "hajek" is N
            times the weighted mean: better where values do not grow with inclusion.
        variance: "sen-yates-grundy" or "horvitz-thompson" (unbiased, from joint probabilities),
            "hajek", "deville" or "brewer" (approximations for designs of high entropy),
            "hansen-hurwitz" (with replacement), "balanced" (for `Cube`). None takes what suits the
            design; which one that was stands in the result.
        joint: (N, N) `design.joint(inclusion)`, if it is at hand.
        confidence: of the interval.
        interval: "student" is symmetric. "hall" allows for skewed values, by their third moment:
            for designs of high entropy, where some units drawn add much more than the others.

    Examples:
        >>> from isfed.sampling import Sampford
        >>> chances = [0.5, 0.5, 0.5, 0.5, 1.0]
        >>> estimate_total([3.0, 5.0, 9.0], [0, 2, 4], chances, design=Sampford()).value
        25.0
    """
    sample = _checked(values, units, inclusion, design, joint)
    scale = float(sample.inclusion.size)
    return _estimated(sample, scale, method, variance, confidence, interval)


def estimate_mean(
    values: ArrayLike, units: ArrayLike, inclusion: ArrayLike, *, design: Any,
    method: str = "hajek", variance: str | None = None,
    joint: np.ndarray | None = None, confidence: float = 0.95, interval: str = "student",
) -> Estimate:  # fmt: skip
    """Estimate the mean of a population from the values of the units drawn.

    Args:
        values: (n,) the values seen, in the order of `units`.
        units: (n,) the units drawn.
        inclusion: (N,) the inclusion probabilities of the whole population.
        design: the design that drew the units.
        method: "hajek", the weighted mean, or "horvitz-thompson", the estimated total over N.
        variance: how the variance is estimated, see `estimate_total`.
        joint: (N, N) `design.joint(inclusion)`, if it is at hand.
        confidence: of the interval.
        interval: "student" or "hall", see `estimate_total`.

    Examples:
        >>> from isfed.sampling import Sampford
        >>> chances = [0.5, 0.5, 0.5, 0.5, 1.0]
        >>> estimate_mean([3.0, 5.0, 9.0], [0, 2, 4], chances, design=Sampford()).value
        5.0
    """
    sample = _checked(values, units, inclusion, design, joint)
    return _estimated(sample, 1.0, method, variance, confidence, interval)


class _Sample(NamedTuple):
    values: np.ndarray  # (n,)
    units: np.ndarray  # (n,)
    inclusion: np.ndarray  # (N,)
    design: Any
    joint: np.ndarray | None


def _checked(
    values: ArrayLike, units: ArrayLike, inclusion: ArrayLike, design: Any, joint: Any
) -> _Sample:
    check_design(design)
    chances = check_scores(inclusion, name="inclusion")
    drawn = np.asarray(as_numbers(units, name="units"))
    seen = np.array(as_numbers(values, name="values"), np.float64)
    if drawn.ndim != 1 or drawn.size == 0 or not np.issubdtype(drawn.dtype, np.integer):
        raise ValueError(f"units must be the numbers of the units drawn, got {shown(units)}")
    if seen.shape != drawn.shape:
        raise ValueError(f"{drawn.size} units but values of shape {seen.shape}")
    if not np.isfinite(seen).all():
        raise ValueError("values must be finite; leave no gap for units that did not answer")
    if drawn.min() < 0 or drawn.max() >= chances.size:
        raise ValueError(f"units must be between 0 and {chances.size - 1}")
    if not getattr(design, "repeats", False) and np.unique(drawn).size < drawn.size:
        raise ValueError(f"a unit came twice, which {type(design).__name__} never draws")
    impossible = drawn[chances[drawn] == 0.0]
    if impossible.size:
        raise ValueError(f"unit {impossible[0]} was drawn, but its inclusion probability is 0")
    if joint is not None and np.shape(joint) != (chances.size,) * 2:
        raise ValueError(f"joint has shape {np.shape(joint)}, expected {(chances.size,) * 2}")
    return _Sample(seen, drawn, chances, design, joint)


def _estimated(
    sample: _Sample, scale: float, method: str, kind: str | None, confidence: float, interval: str
) -> Estimate:
    """`scale` times the mean."""
    from scipy.special import ndtri, stdtrit  # takes a while to import

    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method={shown(method)} must be one of {', '.join(METHODS)}")
    if not (is_number(confidence) and 0.0 < confidence < 1.0):
        raise ValueError(f"confidence={shown(confidence)} must be between 0 and 1")
    if not isinstance(interval, str) or interval not in INTERVALS:
        raise ValueError(f"interval={shown(interval)} must be one of {', '.join(INTERVALS)}")
    kind = _suited(sample) if kind is None else kind
    weights = 1.0 / sample.inclusion[sample.units]
    size = float(sample.inclusion.size) if method == "horvitz-thompson" else weights.sum()
    mean = (weights * sample.values).sum() / size
    # Hájek's mean is a ratio: to first order its error is that of the total of the residuals.
    errors = sample.values if method == "horvitz-thompson" else sample.values - mean
    squared, degrees, cubed = _variance(sample._replace(values=errors), kind)
    if squared < 0.0:
        warnings.warn(
            f"the variance estimated by {kind!r} is negative, {squared:.3g}, and says nothing; "
            f"{INSTEAD}",
            JointWarning,
            stacklevel=3,
        )
    stderr = math.sqrt(squared) / size * scale if squared >= 0.0 else math.nan
    chance = 0.5 + confidence / 2.0
    quantile = ndtri(chance) if math.isinf(degrees) else stdtrit(degrees, chance)
    above, below = float(quantile), -float(quantile)
    if interval == "hall" and stderr > 0.0:
        above, below = hall_quantiles(above, below, skewness=_skewness(cubed, squared))
    value = float(mean * scale)
    low, high = value - above * stderr, value - below * stderr
    return Estimate(value, stderr, low, high, confidence, degrees, method, kind)


def _skewness(cubed: float, squared: float) -> float:
    """Of the estimate, from its third and second moments."""
    if math.isnan(cubed):
        raise VarianceError(
            "interval='hall' needs the skewness of the values, which takes three units that are "
            "not certain in every stratum, and which no formula here gives for Cube; use 'student'"
        )
    return cubed / squared**1.5


def _suited(sample: _Sample) -> str:
    """How the variance is estimated unless given."""
    design = sample.design
    while isinstance(design, Clustered | Stratified):  # what draws within strata and clusters
        design = design.design
    if getattr(design, "repeats", False):
        return "hansen-hurwitz"
    if isinstance(design, Cube):
        return "balanced"
    if not getattr(design, "fixed_size", True):
        return "horvitz-thompson"
    if not getattr(design, "all_pairs", True):
        warnings.warn(
            f"{type(design).__name__} may never draw some pairs of units together. Nothing then "
            "estimates its variance without bias. This is Deville's approximation, which is too "
            "large where draws are spread over units that are alike. variance='deville' asks for "
            "it without a warning; ConditionalPoisson() and Sampford() draw all pairs",
            JointWarning,
            stacklevel=4,
        )
        return "deville"
    exact = hasattr(design, "joint") and getattr(design, "exact_joint", True)
    few = sample.inclusion.size <= MOST_PAIRED
    return "sen-yates-grundy" if (exact and few) or sample.joint is not None else "deville"


def _variance(sample: _Sample, kind: str) -> tuple[float, float, float]:
    """The estimated variance of the Horvitz-Thompson total, its degrees, and the third moment."""
    if isinstance(sample.design, Clustered):
        return _variance(_of_clusters(sample), kind)
    if not isinstance(sample.design, Stratified):
        return _plain_variance(sample, kind)
    squared, degrees, cubed = 0.0, 0.0, 0.0
    for label, members, chance in sample.design.parts(sample.inclusion):
        inside = np.isin(sample.units, members)
        pairs = None if sample.joint is None else sample.joint[np.ix_(members, members)]
        units = np.searchsorted(members, sample.units[inside])
        part = _Sample(sample.values[inside], units, chance, sample.design.design, pairs)
        try:
            more, free, third = _variance(part, kind)
        except VarianceError as error:
            raise VarianceError(f"stratum {label!r}: {error}") from error
        squared += more
        degrees += free if math.isfinite(free) else 0.0
        cubed += third
    return squared, degrees or math.inf, cubed


def _of_clusters(sample: _Sample) -> _Sample:
    """Clusters as units, and their totals as values."""
    design = sample.design
    codes = design.codes[sample.units]
    drawn = np.unique(codes)
    given, whole = np.bincount(codes), np.bincount(design.codes)
    part = [code for code in drawn if given[code] < whole[code]]
    if part:
        raise ValueError(
            f"cluster {design.names[part[0]].item()!r} has {whole[part[0]]} units, but values of "
            f"{given[part[0]]}; a cluster is drawn as a whole"
        )
    totals = np.bincount(codes, weights=sample.values)[drawn]
    first = np.unique(design.codes, return_index=True)[1]
    joint = None if sample.joint is None else sample.joint[np.ix_(first, first)]
    return _Sample(totals, drawn, design.of_clusters(sample.inclusion), design.design, joint)


def _plain_variance(sample: _Sample, kind: str) -> tuple[float, float, float]:
    values, units, inclusion, design, joint = sample
    repeats = getattr(design, "repeats", False)
    fixed = getattr(design, "fixed_size", True)
    name = type(design).__name__
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"variance={shown(kind)} must be one of {', '.join(KINDS)}, or None")
    if repeats != (kind == "hansen-hurwitz"):
        suited = "'hansen-hurwitz'" if repeats else "another one"
        raise VarianceError(f"variance={kind!r} does not suit {name}; use {suited}")
    if kind == "balanced" and not isinstance(design, Cube):
        raise VarianceError(f"variance='balanced' is for Cube; {name} is not balanced on anything")
    if not (fixed or repeats or kind == "horvitz-thompson"):
        raise VarianceError(
            f"variance={kind!r} needs a fixed number of units, but that of {name} is random; use "
            "'horvitz-thompson'"
        )
    num = check_total(inclusion) if repeats else check_inclusion(inclusion)[1]
    if (fixed or repeats) and units.size != num:
        raise ValueError(
            f"{units.size} units were given, but {name} draws {num}, the sum of "
            "inclusion; without the values of all of them the estimate is biased"
        )
    if not repeats:  # certain units add nothing to the variance
        values, units = values[inclusion[units] < 1.0], units[inclusion[units] < 1.0]
    if units.size == 0:
        return 0.0, math.inf, 0.0
    chance = inclusion[units]
    added = values / chance
    if units.size < 2 and fixed:
        raise VarianceError(
            "one unit that is not certain was drawn, which says nothing about the variance; draw "
            "at least two"
        )
    degrees = max(units.size - 1.0, 1.0)
    if kind == "hansen-hurwitz":  # (1943) draws are independent: their spread is all that matters
        squares = ((added - added.mean()) ** 2).sum()
        squared = float(squares * added.size / (added.size - 1.0))
        return squared, degrees, third_moment(added, np.zeros(added.size), centred=True)
    if kind == "balanced":
        return (*_balanced(added, chance, design, inclusion, units), math.nan)
    cubed = third_moment(added, chance, centred=fixed)
    if kind in BY_UNITS:
        return _by_units(kind, added, chance), degrees, cubed
    if joint is None and not hasattr(design, "joint"):
        raise VarianceError(f"{name} has no joint inclusion probabilities for {kind!r}; {INSTEAD}")
    pairs = design.joint(inclusion) if joint is None else np.asarray(joint)
    _check_pairs(kind, name, inclusion, pairs)
    return by_pairs(kind, added, chance, pairs[np.ix_(units, units)]), degrees, cubed


# Estimates of the variance of a total. `added` is what the units drawn add to it, y / inclusion, of
# those that are not certain; `chance` are their inclusion probabilities.


def by_pairs(kind: str, added: np.ndarray, chance: np.ndarray, joint: np.ndarray) -> float:
    """Unbiased where all pairs are possible.

    Horvitz and Thompson (1952), or Sen (1953), Yates and Grundy (1953), which needs a fixed size;
    `joint` is (n, n), of the units drawn, with `chance` on the diagonal.
    """
    excess = 1.0 - np.outer(chance, chance) / joint
    if kind == "horvitz-thompson":
        return float(added @ excess @ added)
    return float(-0.5 * (excess * (added[:, None] - added) ** 2).sum())


def _by_units(kind: str, added: np.ndarray, chance: np.ndarray) -> float:
    """Approximations for designs of fixed size and high entropy.

    With equal probabilities all are the estimate of simple random sampling, which is unbiased.
    """
    num = added.size
    if kind == "brewer":  # Brewer (2002), with c = (n - 1) / (n - inclusion)
        weights = (num - chance) / (num - 1.0) - chance
        return float((weights * (added - added.mean()) ** 2).sum())
    weights = 1.0 - chance
    centre = (weights * added).sum() / weights.sum()
    squares = (weights * (added - centre) ** 2).sum()
    if kind == "hajek":  # Hájek (1964)
        return float(squares * num / (num - 1.0))
    shares = weights / weights.sum()  # Deville (1999)
    return float(squares / (1.0 - (shares**2).sum()))


def _balanced(
    added: np.ndarray, chance: np.ndarray, design: Cube, inclusion: np.ndarray, units: np.ndarray
) -> tuple[float, float]:
    """What the balanced variables do not explain, and what their own imbalance adds.

    The residuals are those of Deville and Tillé (2005), who suppose that the balance is exact. The
    last units of the cube method leave it inexact, by a covariance that the known variables tell.
    """
    rows = design.variables(inclusion)[units] / chance[:, None]
    num, count = rows.shape
    if num <= count:
        raise VarianceError(
            f"{num} units do not tell how much {count} balanced variables leave unexplained; draw "
            "more units or balance on fewer variables"
        )
    weights = 1.0 - chance
    scaled = np.sqrt(weights)
    slopes = np.linalg.lstsq(rows * scaled[:, None], added * scaled, rcond=None)[0]
    squares = (weights * (added - rows @ slopes) ** 2).sum() * num / (num - count)
    return float(squares + slopes @ design.imbalance(inclusion) @ slopes), float(num - count)


def _check_pairs(kind: str, design: str, inclusion: np.ndarray, joint: np.ndarray) -> None:
    """Refuse joint probabilities of zero: such pairs are never seen, which biases the estimate."""
    if joint.min() > ROUNDING:  # as nearly always; the rest takes ten times as long
        return
    seen = np.flatnonzero(inclusion > 0.0)
    least = ROUNDING * np.outer(inclusion[seen], inclusion[seen])
    never = np.argwhere(np.triu(joint[np.ix_(seen, seen)] <= least, 1))
    if len(never):
        one, two = seen[never[0]]
        raise VarianceError(
            f"{len(never)} pairs of units are never drawn together by {design} (for "
            f"instance {one} and {two}: joint inclusion probability 0), so that the estimate "
            f"{kind!r} of the variance would be biased; {INSTEAD}"
        )
