"""Robust combinations of weighted changes: a few hostile agents cannot move the model far.

All of them are **biased**: they bound or leave out what is far from the others, and honest agents
differ too. Use them where agents are not trusted, not to save rounds. They combine the changes
after their weights 1 / (K p_k), as `HorvitzThompson` does, since it is the product that moves the
model; the more unequal the weights, the larger the bias. `python tests/support/rogue.py` measures
how many hostile agents of a round each of them bears.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from isfed.base.portable_arithmetic import row_norms, weighted_sum
from isfed.federation.messages import Facts, Updates
from isfed.methods.estimators import HorvitzThompson, trained_changes
from isfed.methods.federated import Combined, Opened
from isfed.methods.method_protocol import Positive

ROUNDS, CLOSE = 100, 1e-10  # of Weiszfeld's iteration, and the relative move at which it ends


def check_trim(share: Any, *, name: str = "share") -> None:
    """Raise a ValueError unless something is left after cutting this share off both ends."""
    if not (isinstance(share, float | int) and 0.0 <= share < 0.5):
        raise ValueError(f"{name}={share} must be at least 0 and below 0.5")


def _mean(rows: np.ndarray) -> np.ndarray:
    return weighted_sum(np.full(len(rows), 1.0 / len(rows)), rows)


class RobustMean(HorvitzThompson):
    """A centre of the weighted changes in place of their mean; biased."""

    linear: ClassVar[bool] = False

    def centre(self, rows: np.ndarray) -> np.ndarray:
        """(M',) the centre of some weighted changes, at least one."""
        raise NotImplementedError

    def combine(self, state: Any, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        step, state, evidence = super().combine(state, opened, updates, facts)
        rows = trained_changes(updates, facts)
        if not len(rows):
            return step, state, evidence
        cohort = opened.cohort
        weights = (self.weights(cohort, facts)[updates.place] * updates.factor)[:, None]
        # Those that do not answer count as no change, as in the mean over L.
        return self.centre(weights * rows) * (len(rows) / cohort.num), state, evidence


@dataclass(frozen=True)
class NormClippedMean(RobustMean):
    """The mean of weighted changes, each at most some multiple of their median length; biased.

    Args:
        on: where 1 / (K p_k) goes, see `HorvitzThompson`.
        medians: the largest length, in medians of the lengths of the round.
    """

    medians: Positive = 2.0

    def centre(self, rows: np.ndarray) -> np.ndarray:
        lengths = row_norms(rows)
        limit = self.medians * float(np.median(lengths))
        factor = np.minimum(1.0, limit / np.maximum(lengths, 1e-300))
        return weighted_sum(factor / len(rows), rows)


@dataclass(frozen=True)
class TrimmedMean(RobustMean):
    """The mean of every coordinate without its largest and smallest values; biased.

    Yin, Chen, Kannan and Bartlett (ICML 2018), arXiv 1803.01498.

    Args:
        on: where 1 / (K p_k) goes, see `HorvitzThompson`.
        share: what is left out on each side, and the share of hostile changes that it bears.
    """

    share: Annotated[float, check_trim] = 0.2

    def centre(self, rows: np.ndarray) -> np.ndarray:
        cut = min(math.ceil(self.share * len(rows) - 1e-9), (len(rows) - 1) // 2)
        return _mean(np.ascontiguousarray(np.sort(rows, axis=0)[cut : len(rows) - cut]))


@dataclass(frozen=True)
class GeometricMedian(RobustMean):
    """The point with the smallest sum of distances to the weighted changes; biased.

    By Weiszfeld's iteration; Pillutla, Kakade and Harchaoui (2022), arXiv 1912.13445. It bears
    hostile changes as long as they are fewer than half.

    Args:
        on: where 1 / (K p_k) goes, see `HorvitzThompson`.
    """

    def centre(self, rows: np.ndarray) -> np.ndarray:
        point = np.median(rows, axis=0)
        scale = float(np.median(row_norms(rows - point)))
        for _ in range(ROUNDS):
            # A little away from the points themselves, where distances are zero.
            near = 1.0 / np.maximum(row_norms(rows - point), 1e-9 * scale + 1e-300)
            before, point = point, weighted_sum(near / near.sum(), rows)
            if row_norms((point - before)[None])[0] <= CLOSE * scale:
                break
        return point
