"""Was a run long enough? Its steady level is quoted only if it had stopped changing.

Of every repetition the mean of its last quarter is compared with the mean of the quarter before, in
decibels; the change is the mean of these over the repetitions, with its standard error. A run

- has not settled if the change exceeds two standard errors and 0.1 dB (less is smaller than what
  anybody quotes, however well it is measured),
- has settled if it does not, and two standard errors are at most 2 dB,
- else it has too few repetitions to tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from isfed.simulate.run_history import stderr_of_mean

QUARTER = 0.25
LEAST_DB = 0.1
MOST_UNSURE_DB = 2.0


@dataclass(frozen=True)
class Settling:
    """How much a level changed from the quarter before to the last quarter, in decibels."""

    change_db: float  # negative: still falling
    stderr_db: float  # nan for a single repetition

    @property
    def settled(self) -> bool | None:
        """None if nobody can tell."""
        if math.isnan(self.change_db) or math.isnan(self.stderr_db):
            return None
        if abs(self.change_db) > max(LEAST_DB, 2.0 * self.stderr_db):
            return False
        return True if 2.0 * self.stderr_db <= MOST_UNSURE_DB else None


def settling(values: np.ndarray) -> Settling:
    """Whether a positive quantity, (R, T), had stopped changing at the end.

    >>> rounds = np.arange(100)
    >>> falling = settling(np.exp(-rounds / 50.0) * np.array([[1.0], [3.0]]))
    >>> falling.settled, round(falling.change_db, 2)
    (False, -2.17)
    """
    points = values.shape[1]
    width = max(1, round(QUARTER * points))
    if points < 2 * width:
        return Settling(math.nan, math.nan)
    last = values[:, -width:].mean(axis=1)
    before = values[:, -2 * width : -width].mean(axis=1)
    if not (np.isfinite(last + before).all() and (last > 0.0).all() and (before > 0.0).all()):
        return Settling(math.nan, math.nan)
    changes = 10.0 * np.log10(last / before)
    return Settling(float(changes.mean()), float(stderr_of_mean(changes[:, None])[0]))
