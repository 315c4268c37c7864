"""Estimates of the variance of an estimated total, from the units that were drawn.

All of them take what units add to the total, y / inclusion, of the units that are not certain.
"""

from __future__ import annotations

from typing import Any

import numpy as np

BY_PAIRS = ("horvitz-thompson", "sen-yates-grundy")
BY_UNITS = ("hajek", "deville", "brewer")
OTHERS = ("hansen-hurwitz", "balanced")
ROUNDING = 1e-12  # a joint probability so much smaller than independent units have is zero
INSTEAD = (
    "use variance='deville', 'hajek' or 'brewer', which need no pairs, or draw with "
    "ConditionalPoisson() or Sampford(), under which all pairs are possible"
)


class VarianceError(ValueError):
    """No estimate of the variance can be had in this way; the message names another."""


def by_pairs(kind: str, added: np.ndarray, chance: np.ndarray, joint: np.ndarray) -> float:
    """Unbiased where all pairs are possible.

    Horvitz and Thompson (1952), or Sen (1953), Yates and Grundy (1953), which needs a fixed size.
    joint: (n, n) of the units drawn, with `chance` on the diagonal.
    """
    excess = 1.0 - np.outer(chance, chance) / joint
    if kind == "horvitz-thompson":
        return float(added @ excess @ added)
    return float(-0.5 * (excess * (added[:, None] - added) ** 2).sum())


def by_units(kind: str, added: np.ndarray, chance: np.ndarray) -> float:
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


def with_replacement(added: np.ndarray) -> float:
    """Hansen and Hurwitz (1943): draws are independent, so their spread is all that matters."""
    num = added.size
    return float(((added - added.mean()) ** 2).sum() * num / (num - 1.0))


def balanced(added: np.ndarray, chance: np.ndarray, variables: np.ndarray) -> float:
    """Deville and Tillé (2005): what the balanced variables do not explain.

    variables: (n, p) of the units drawn, the inclusion probabilities among them.
    """
    num, count = variables.shape
    weights = 1.0 - chance
    rows = variables / chance[:, None]
    scaled = np.sqrt(weights)
    slopes = np.linalg.lstsq(rows * scaled[:, None], added * scaled, rcond=None)[0]
    return float((weights * (added - rows @ slopes) ** 2).sum() * num / (num - count))


def check_pairs(kind: str, design: Any, inclusion: np.ndarray, joint: np.ndarray) -> None:
    """Refuse joint probabilities of zero: such pairs are never seen, which biases the estimate."""
    if joint.min() > ROUNDING:  # as nearly always; the rest takes ten times as long
        return
    seen = np.flatnonzero(inclusion > 0.0)
    least = ROUNDING * np.outer(inclusion[seen], inclusion[seen])
    never = np.argwhere(np.triu(joint[np.ix_(seen, seen)] <= least, 1))
    if len(never):
        one, two = seen[never[0]]
        raise VarianceError(
            f"{len(never)} pairs of units are never drawn together by {type(design).__name__} (for "
            f"instance {one} and {two}: joint inclusion probability 0), so that the estimate "
            f"{kind!r} of the variance would be biased; {INSTEAD}"
        )
