"""The theorem's bound on the msd, and which bound on the variance it is built from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np


class Rule(Enum):
    """Which bound on the variance of a draw the constants use."""

    REPLACEMENT = "with replacement (Lemma 1)"
    PAPER = "without replacement, as the paper states it: 1/B_k kept, 1/L dropped"
    ANY_DESIGN = "without replacement, any design of fixed size: neither 1/B_k nor 1/L"


@dataclass(frozen=True)
class Bound:
    """The bound of Theorem 1: msd_i <= lambda'^i msd_0 + (1 - lambda'^i) limit.

    Args:
        gap: 1 - lambda'.
        data: what one round adds through data variability.
        model: what one round adds through model variability.
    """

    gap: float
    data: float
    model: float

    @property
    def limit_parts(self) -> tuple[float, float]:
        """The limit's parts: data variability, model variability, eq. (39)."""
        return self.data / self.gap, self.model / self.gap

    @property
    def limit(self) -> float:
        """The bound on the steady-state msd, eq. (39)."""
        return sum(self.limit_parts)

    def curve(self, rounds: int, initial: float) -> np.ndarray:
        """The bound on the msd after every round, from |w_0 - w^o|^2 = `initial`, eq. (38)."""
        log_left = np.arange(1, rounds + 1) * np.log1p(-self.gap)
        return np.exp(log_left) * initial - np.expm1(log_left) * self.limit
