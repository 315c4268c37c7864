"""Designs whose draws are independent: Poisson (random size) and with replacement (repeats)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from isfed.base.random_streams import as_stream
from isfed.sampling import table_draws
from isfed.sampling.designs.design_protocol import RandomSource
from isfed.sampling.designs.inclusion import check_inclusion, check_scores, check_total


@dataclass(frozen=True)
class Poisson:
    """Every unit is drawn independently: exact probabilities, but the number drawn is random."""

    fixed_size: ClassVar[bool] = False
    guarantee: ClassVar[str] = (
        "exact inclusion probabilities, independent units; the number drawn is random (n on "
        "average), which costs variance"
    )

    def draw(self, inclusion: ArrayLike, rng: RandomSource) -> np.ndarray:
        values, _ = check_inclusion(inclusion)
        return np.flatnonzero(as_stream(rng).uniforms(values.size) < values)

    def joint(self, inclusion: ArrayLike) -> np.ndarray:
        values, _ = check_inclusion(inclusion)
        joint = np.outer(values, values)
        np.fill_diagonal(joint, values)
        return joint


@dataclass(frozen=True)
class WithReplacement:
    """Independent draws in which a unit may repeat; `inclusion` is the expected number of times."""

    code: ClassVar[int] = table_draws.REPLACEMENT
    fixed_size: ClassVar[bool] = False
    repeats: ClassVar[bool] = True
    guarantee: ClassVar[str] = (
        "n draws, exact expected counts; a unit can come several times, so more variance than "
        "any design without replacement of the same probabilities"
    )

    def draw(self, inclusion: ArrayLike, rng: RandomSource) -> np.ndarray:
        """The units drawn, in the order of drawing, with repeats."""
        values = check_scores(inclusion, name="inclusion")
        ends = np.cumsum(values)
        points = as_stream(rng).uniforms(check_total(values)) * ends[-1]
        return np.searchsorted(ends, points, side="right").clip(max=np.flatnonzero(values)[-1])

    def joint(self, inclusion: ArrayLike) -> np.ndarray:
        """Exact means of the products of two counts; on the diagonal, of the squared counts."""
        values = check_scores(inclusion, name="inclusion")
        num = check_total(values)
        return np.outer(values, values) * ((num - 1) / num) + np.diag(values)
