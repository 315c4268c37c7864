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
from isfed.base.value_checks import check_positive
from isfed.federation.messages import Cohort, Facts, Updates, Work
from isfed.methods.estimators import Mean, trained_changes
from isfed.methods.federated import Evidence, Opened
from isfed.sampling.policies import Policy


@dataclass(frozen=True)
class Extrapolated:
    """An estimator whose step is made longer by max(1, mean |change|^2 / (2 |step|^2 + 2 epsilon)).

    Args:
        inner: the estimator; the mean of the squares weighs agents as it does.
        epsilon: keeps the factor small where the step nearly vanishes; the paper tunes it.
    """

    inner: Any
    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        check_positive(self.epsilon, name="epsilon")

    @property
    def needs(self) -> dict[str, str]:
        """Those of the estimator inside, and changes that nobody has weighed yet."""
        return getattr(self.inner, "needs", {}) | {
            "weights on the change": "the lengths of the changes count; use HorvitzThompson()"
        }

    @property
    def gives(self) -> set[str]:
        """Those of the estimator inside."""
        plain = {"weights on the change"} if isinstance(self.inner, Mean) else set()
        return plain | getattr(self.inner, "gives", set())

    def reports(self, wanted: Policy) -> Policy:
        """Those of the estimator inside."""
        refine = getattr(self.inner, "reports", None)
        return wanted if refine is None else refine(wanted)

    def init(self, facts: Facts, params: np.ndarray) -> Any:
        """As the estimator inside."""
        return self.inner.init(facts, params)

    def ask(self, state: Any, cohort: Cohort, facts: Facts, work: Work) -> Work:
        """As the estimator inside."""
        return self.inner.ask(state, cohort, facts, work)

    def counts(self, cohort: Cohort, facts: Facts) -> np.ndarray:
        """As the estimator inside."""
        return self.inner.counts(cohort, facts)

    def combine(
        self, state: Any, opened: Opened, updates: Updates, facts: Facts
    ) -> tuple[np.ndarray, Any, Evidence]:
        """The step of the estimator inside, times the paper's eta_g."""
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
