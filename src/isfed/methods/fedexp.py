"""FedExP: Jhunjhunwala, Wang and Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation"
(ICLR 2023), arXiv 2301.09604.

Where agents pull in different directions their mean change is much shorter than their changes, and
the cloud can step further than to the mean. Only an estimator sees these lengths, so this is one
around another, and not a server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from isfed.base.portable_arithmetic import inner, row_squares
from isfed.federation.messages import Facts, Updates
from isfed.methods.estimators import Over, trained_changes
from isfed.methods.federated import Combined, Opened
from isfed.methods.method_protocol import Positive, check_record


@dataclass(frozen=True)
class Extrapolated(Over):
    """An estimator whose step is made longer by max(1, mean |change|^2 / (2 |step|^2 + 2 epsilon)).

    Args:
        inner: the estimator; the mean of the squares weighs agents as it does.
        epsilon: keeps the factor small where the step nearly vanishes; the paper tunes it.
    """

    epsilon: Positive = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_record(self)

    @property
    def needs(self) -> dict[str, str]:
        return getattr(self.inner, "needs", {}) | {
            "weights on the change": "the lengths of the changes count; use HorvitzThompson()"
        }

    def combine(self, state: Any, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        change, cohort = trained_changes(updates, facts), opened.cohort
        squares = row_squares(change)  # now: the estimator may write into the changes
        step, state, evidence = self.inner.combine(state, opened, updates, facts)
        if not squares.size:
            return step, state, evidence
        counts = (self.counts(cohort, facts) * np.ones(cohort.agents.size))[updates.place]
        counts = counts * updates.factor
        mean = inner(counts, squares) / counts.sum()
        factor = max(1.0, mean / (2.0 * (inner(step, step) + self.epsilon)))
        return factor * step, state, evidence
