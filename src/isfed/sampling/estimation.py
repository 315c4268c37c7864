"""Totals and means of a population, estimated from a draw, with standard errors and intervals."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from isfed.base.argument_types import shown
from isfed.base.value_checks import as_numbers, is_number
from isfed.sampling.designs import Clustered, Cube, Stratified
from isfed.sampling.designs.inclusion import (
    check_design,
    check_inclusion,
    check_scores,
    check_total,
)
from isfed.sampling.variance_estimators import (
    BY_PAIRS,
    BY_UNITS,
    INSTEAD,
    OTHERS,
    VarianceError,
    balanced,
    by_pairs,
    by_units,
    check_pairs,
    with_replacement,
)

MOST_PAIRED = 1000  # units of whose pairs the variance is estimated unless told otherwise
METHODS = ("horvitz-thompson", "hajek")


class JointWarning(UserWarning):
    """The variance could only be approximated, or came out negative."""


@dataclass(frozen=True)
class Estimate:
    """An estimate with its standard error and its interval.

    value: the estimate.
    stderr: its standard error; NaN where the variance was estimated as negative.
    low, high: the interval, by Student's t.
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
    joint: np.ndarray | None = None, confidence: float = 0.95,
) -> Estimate:  # fmt: skip
    """Estimate the total of a population from the values of the units drawn.

    values: (n,) the values seen, in the order of `units`.
    units: (n,) the units drawn.
    inclusion: (N,) the inclusion probabilities of the whole population.
    design: the design that drew the units.
    method: "horvitz-thompson", the sum of values over inclusion, is unbiased. "hajek" is N times
        the weighted mean: better where values do not grow with inclusion.
    variance: "sen-yates-grundy" or "horvitz-thompson" (unbiased, from joint probabilities),
        "hajek", "deville" or "brewer" (approximations for designs of high entropy),
        "hansen-hurwitz" (with replacement), "balanced" (for `Cube`). None takes what suits the
        design; which one that was stands in the result.
    joint: (N, N) `design.joint(inclusion)`, if it is at hand.
    confidence: of the interval.

    >>> from isfed.sampling import Sampford
    >>> chances = [0.5, 0.5, 0.5, 0.5, 1.0]
    >>> estimate_total([3.0, 5.0, 9.0], [0, 2, 4], chances, design=Sampford()).value
    25.0
    """
    sample = _checked(values, units, inclusion, design, joint)
    return _estimated(sample, float(sample.inclusion.size), method, variance, confidence)


def estimate_mean(
    values: ArrayLike, units: ArrayLike, inclusion: ArrayLike, *, design: Any,
    method: str = "hajek", variance: str | None = None,
    joint: np.ndarray | None = None, confidence: float = 0.95,
) -> Estimate:  # fmt: skip
    """Estimate the mean of a population from the values of the units drawn.

    values: (n,) the values seen, in the order of `units`.
    units: (n,) the units drawn.
    inclusion: (N,) the inclusion probabilities of the whole population.
    design: the design that drew the units.
    method: "hajek", the weighted mean, or "horvitz-thompson", the estimated total over N.
    variance: how the variance is estimated, see `estimate_total`.
    joint: (N, N) `design.joint(inclusion)`, if it is at hand.
    confidence: of the interval.

    >>> from isfed.sampling import Sampford
    >>> chances = [0.5, 0.5, 0.5, 0.5, 1.0]
    >>> estimate_mean([3.0, 5.0, 9.0], [0, 2, 4], chances, design=Sampford()).value
    5.0
    """
    sample = _checked(values, units, inclusion, design, joint)
    return _estimated(sample, 1.0, method, variance, confidence)


class _Sample(NamedTuple):
    values: np.ndarray  # (n,)
    units: np.ndarray  # (n,)
    inclusion: np.ndarray  # (N,)
    design: Any
    joint: np.ndarray | None

    def of(self, values: np.ndarray) -> _Sample:
        """The same units with other values."""
        return self._replace(values=values)


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
    sample: _Sample, scale: float, method: str, kind: str | None, confidence: float
) -> Estimate:
    """`scale` times the mean."""
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method={shown(method)} must be one of {', '.join(METHODS)}")
    if not (is_number(confidence) and 0.0 < confidence < 1.0):
        raise ValueError(f"confidence={shown(confidence)} must be between 0 and 1")
    kind = _suited(sample) if kind is None else kind
    weights = 1.0 / sample.inclusion[sample.units]
    size = float(sample.inclusion.size) if method == "horvitz-thompson" else weights.sum()
    mean = (weights * sample.values).sum() / size
    # Hájek's mean is a ratio: to first order its error is that of the total of the residuals.
    errors = sample.values if method == "horvitz-thompson" else sample.values - mean
    squared, degrees = _variance(sample.of(errors), kind)
    if squared < 0.0:
        warnings.warn(
            f"the variance estimated by {kind!r} is negative, {squared:.3g}, and says nothing; "
            f"{INSTEAD}",
            JointWarning,
            stacklevel=3,
        )
    stderr = math.sqrt(squared) / size * scale if squared >= 0.0 else math.nan
    reach = _quantile(0.5 + confidence / 2.0, degrees) * stderr
    value = float(mean * scale)
    return Estimate(value, stderr, value - reach, value + reach, confidence, degrees, method, kind)


def _quantile(chance: float, degrees: float) -> float:
    """Of Student's t."""
    from scipy.special import ndtri, stdtrit  # takes a while to import

    return float(ndtri(chance) if math.isinf(degrees) else stdtrit(degrees, chance))


def _inner(design: Any) -> Any:
    """What draws within strata and clusters."""
    return _inner(design.design) if isinstance(design, Clustered | Stratified) else design


def _suited(sample: _Sample) -> str:
    """How the variance is estimated where nobody says how."""
    design = _inner(sample.design)
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


def _variance(sample: _Sample, kind: str) -> tuple[float, float]:
    """The estimated variance of the Horvitz-Thompson total, and its degrees of freedom."""
    if isinstance(sample.design, Clustered):
        return _variance(_of_clusters(sample), kind)
    if not isinstance(sample.design, Stratified):
        return _plain_variance(sample, kind)
    squared, degrees = 0.0, 0.0
    for label, members, chance in sample.design.parts(sample.inclusion):
        inside = np.isin(sample.units, members)
        pairs = None if sample.joint is None else sample.joint[np.ix_(members, members)]
        part = _Sample(
            sample.values[inside],
            np.searchsorted(members, sample.units[inside]),
            chance,
            sample.design.design,
            pairs,
        )
        try:
            more, free = _variance(part, kind)
        except VarianceError as error:
            raise VarianceError(f"stratum {label!r}: {error}") from error
        squared += more
        degrees += free if math.isfinite(free) else 0.0
    return squared, degrees or math.inf


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


def _plain_variance(sample: _Sample, kind: str) -> tuple[float, float]:
    values, units, inclusion, design, joint = sample
    repeats = getattr(design, "repeats", False)
    fixed = getattr(design, "fixed_size", True)
    _check_kind(kind, design, repeats=repeats, fixed=fixed)
    num = check_total(inclusion) if repeats else check_inclusion(inclusion)[1]
    if (fixed or repeats) and units.size != num:
        raise ValueError(
            f"{units.size} units were given, but {type(design).__name__} draws {num}, the sum of "
            "inclusion; without the values of all of them the estimate is biased"
        )
    if not repeats:  # certain units add nothing to the variance
        values, units = values[inclusion[units] < 1.0], units[inclusion[units] < 1.0]
    if units.size == 0:
        return 0.0, math.inf
    chance = inclusion[units]
    added = values / chance
    if units.size < 2 and fixed:
        raise VarianceError(
            "one unit that is not certain was drawn, which says nothing about the variance; draw "
            "at least two"
        )
    degrees = max(units.size - 1.0, 1.0)
    if kind == "hansen-hurwitz":
        return with_replacement(added), degrees
    if kind == "balanced":
        variables = design.variables(inclusion)[units]
        free = units.size - variables.shape[1]
        if free < 1:
            raise VarianceError(
                f"{units.size} units do not tell how much {variables.shape[1]} balanced variables "
                "leave unexplained; draw more units or balance on fewer variables"
            )
        return balanced(added, chance, variables), float(free)
    if kind in BY_UNITS:
        return by_units(kind, added, chance), degrees
    pairs = _joint(design, inclusion, kind) if joint is None else np.asarray(joint)
    check_pairs(kind, design, inclusion, pairs)
    return by_pairs(kind, added, chance, pairs[np.ix_(units, units)]), degrees


def _joint(design: Any, inclusion: np.ndarray, kind: str) -> np.ndarray:
    if not hasattr(design, "joint"):
        raise VarianceError(
            f"{type(design).__name__} has no joint inclusion probabilities for {kind!r}; {INSTEAD}"
        )
    return design.joint(inclusion)


def _check_kind(kind: str, design: Any, *, repeats: bool, fixed: bool) -> None:
    """Refuse an estimate of the variance that does not suit the design."""
    known = (*BY_PAIRS, *BY_UNITS, *OTHERS)
    if not isinstance(kind, str) or kind not in known:
        raise ValueError(f"variance={shown(kind)} must be one of {', '.join(known)}, or None")
    name = type(design).__name__
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
