"""Estimators of the mean step: plain means, Horvitz-Thompson, and the adjustment for absences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from isfed.base.argument_checks import shown
from isfed.base.jit import compiled
from isfed.base.portable_arithmetic import inner, row_squares, weighted_sum
from isfed.federation.messages import Cohort, Facts, Updates, Work
from isfed.federation.response_rates import LARGEST_ADJUSTMENT, WINDOW, Responses
from isfed.methods.federated import Combined, Estimator, Evidence, Opened
from isfed.methods.method_protocol import Forwarding, Positive, check_record

TINY = 1e-300  # a divisor that turns 0 / 0 into 0 when no agent answered


@compiled
def _sum(weights, changes, divisor, out):
    """The weighted sum of the changes over a divisor, added up in the given order."""
    for j in range(out.size):
        out[j] = 0.0
    for i in range(weights.size):
        for j in range(out.size):
            out[j] += weights[i] * changes[i, j]
    for j in range(out.size):
        out[j] /= divisor


def weighted_step(
    weights: np.ndarray, changes: np.ndarray, divisor: float, size: int
) -> np.ndarray:
    """(size,) the weighted sum of the first entries of some changes, over a divisor."""
    out = np.empty(size)  # allocated here: returning an array from compiled code is slow
    _sum(weights, changes, divisor, out)
    return out


def trained_changes(updates: Updates, facts: Facts) -> np.ndarray:
    """(m, M') the changes without the buffers of a network's model."""
    if facts.num_trained == facts.num_params:
        return updates.change
    return np.ascontiguousarray(updates.change[:, : facts.num_trained])


class InverseProbability(Estimator):
    """Estimators that weigh by 1 / (K p_k): who applies this weight, and its value."""

    linear: ClassVar[bool] = False  # whether the step is a sum of weighted changes, nothing more
    on: Literal["step", "change"]
    needs: ClassVar[Any] = {
        "inclusion probabilities": "draw agents with ByScore(...), which knows them"
    }

    def __post_init__(self) -> None:
        check_record(self)

    @property
    def gives(self) -> set[str]:
        words = {"step sizes"}  # in `Evidence.reach`
        return words | {"weights on the change"} if self.on == "change" else words

    def counts(self, cohort: Cohort, facts: Facts) -> np.ndarray:
        """(n,) c_k / p_k, times how often each agent was drawn."""
        return facts.weighed(cohort.times / (facts.num_agents * cohort.prob), cohort.agents)


@dataclass(frozen=True)
class HorvitzThompson(InverseProbability):
    """The sum of the changes over L, each divided by K p_k: unbiased whatever the draw.

    Args:
        on: where 1 / (K p_k) goes: into the agent's "step", as in eq. (8), or on the "change" that
            it sends.
    """

    on: Literal["step", "change"] = "change"
    linear: ClassVar[bool] = True

    def ask(self, state: Any, cohort: Cohort, facts: Facts, work: Work) -> Work:
        """If the weight is in the step, every agent divides its step by its K p_k, eq. (8)."""
        if self.on == "change":
            return work
        scale = None if facts.weight is None else facts.weight[cohort.agents]
        rest: Any = work[4:]  # building it anew is twice as fast as `_replace`
        return Work(work.step_size, work.divide, cohort.prob, scale, *rest)

    def weights(self, cohort: Cohort, facts: Facts) -> np.ndarray:
        """(n,) what every change is multiplied by, before it is divided by L."""
        return cohort.times if self.on == "step" else self.counts(cohort, facts)

    def combine(self, state: Any, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        cohort, place = opened.cohort, updates.place
        weights = self.weights(cohort, facts)[place]
        if isinstance(updates.factor, np.ndarray):
            weights = weights * updates.factor
        # Divided by L, never by the sum of the weights: that would bias the mean.
        step = weighted_step(weights, updates.change, cohort.num, facts.num_trained)
        reach = opened.work.reach(cohort.agents, facts)
        if reach is not None:
            weight = facts.num_agents * cohort.prob
            if self.on == "change":
                weight = facts.weighed(np.ones(cohort.agents.size), cohort.agents)
            reach = (reach / weight)[place]
        return step, state, Evidence(updates.score, trained_changes(updates, facts), reach)


@dataclass(frozen=True)
class Mean(Estimator):
    """The mean change of the agents that answered, weighted by c_k: FedAvg's, if drawn uniformly.

    With weights by size it is a ratio of two random sums, which is slightly biased. An estimator
    without memory can inherit from it and override `mean` alone.
    """

    gives: ClassVar[set[str]] = {"weights on the change"}

    def __post_init__(self) -> None:
        check_record(self)

    def counts(self, cohort: Cohort, facts: Facts) -> np.ndarray:
        """(n,) c_k in some unit, times how often each agent was drawn."""
        return facts.counted(cohort.times, cohort.agents)

    def counts_here(self, cohort: Cohort, updates: Updates, facts: Facts) -> np.ndarray:
        """(m,) the weights of the agents that answered."""
        counts = self.counts(cohort, facts)[updates.place]
        return counts * updates.factor if isinstance(updates.factor, np.ndarray) else counts

    def mean(self, rows: np.ndarray, opened: Opened, updates: Updates, facts: Facts) -> np.ndarray:
        """(M',) the weighted mean of the rows of those that answered; zero if none did."""
        counts = self.counts_here(opened.cohort, updates, facts)
        # If weights are equal and every draw answered, the sum of the counts is known.
        plain = facts.weight is None and not isinstance(updates.factor, np.ndarray)
        total = len(rows) if plain and len(rows) == opened.cohort.num else float(counts.sum())
        if total == counts.size > 0:
            return weighted_step(counts, rows, total, rows.shape[1])
        return weighted_sum(counts / max(total, TINY), rows)

    def combine(self, state: Any, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        change = trained_changes(updates, facts)
        return self.mean(change, opened, updates, facts), state, Evidence(updates.score, change)


@dataclass(frozen=True)
class PlainMean(Mean):
    """The mean change over the draws that answered, for draws with probabilities from c_k."""

    def counts(self, cohort: Cohort, facts: Facts) -> np.ndarray:
        return cohort.times

    def mean(self, rows: np.ndarray, opened: Opened, updates: Updates, facts: Facts) -> np.ndarray:
        counts = self.counts_here(opened.cohort, updates, facts)
        return weighted_sum(counts, rows) / max(float(counts.sum()), 1.0)


@dataclass(frozen=True)
class MeanOfAll(Mean):
    """The mean change of all agents, sum_k c_k change_k, over those that answered."""

    def mean(self, rows: np.ndarray, opened: Opened, updates: Updates, facts: Facts) -> np.ndarray:
        """(M',) the sum weighted by c_k, rescaled to sum to 1 if an agent is missing."""
        share = facts.share(opened.cohort.agents[updates.place])
        if share.size < facts.num_agents:
            share = share / max(float(share.sum()), TINY)
        return weighted_sum(share, rows)


@dataclass(frozen=True)
class Over(Forwarding):
    """The base of estimators that wrap another one, and behave like it unless they override.

    Args:
        inner: the wrapped estimator.
    """

    inner: Any
    forwarded: ClassVar[tuple[str, ...]] = (
        "needs", "gives", "reports", "reads_steps", "init", "ask", "counts", "weights"
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not callable(getattr(self.inner, "combine", None)) or isinstance(self.inner, type):
            raise TypeError(f"inner={shown(self.inner)} must be an estimator, e.g. Mean()")
        if getattr(self.inner, "outermost", False):
            raise ValueError(
                f"{type(self).__name__} uses what each agent sent, which noise is to hide: with "
                "Privacy(noise=...) nothing goes around Private(...); leave one of them out"
            )
        check_record(self)


class AdjustedState(NamedTuple):
    """The state of the wrapped estimator, and how often every agent answered."""

    inner: Any
    responses: np.ndarray  # (K, 2 + WINDOW) turns, answers, and when the last answers were given
    owed: np.ndarray  # (K,) what missed turns were worth and is not paid back; empty if not kept


@dataclass(frozen=True)
class InverseResponse(Over):
    """An estimator whose changes are divided by an estimate of their agents' response rates r_k.

    It is unbiased if an absence does not depend on what the agent would have sent. Without this
    estimator an absence counts as no change. Rounds that did not wait for all agents are left out
    of the estimates.

    Args:
        inner: the wrapped estimator.
        most: the largest factor for a change.
        repays: whether an agent is paid back at most what the turns that it missed were worth.
            Otherwise one gains that misses turns of little weight on purpose, and then answers
            with a large one. In the beginning absences are made up for more slowly.
        patience: the share of rounds that wait for all, the only ones in which absences are seen.
    """

    most: float = LARGEST_ADJUSTMENT
    repays: bool = field(default=False, kw_only=True)
    patience: float = field(default=1.0, kw_only=True)

    def init(self, facts: Facts, params: np.ndarray) -> AdjustedState:
        responses = np.zeros((facts.num_agents, 2 + WINDOW), np.int64)
        owed = np.zeros(facts.num_agents if self.repays else 0)
        return AdjustedState(self.inner.init(facts, params), responses, owed)

    def ask(self, state: AdjustedState, cohort: Cohort, facts: Facts, work: Work) -> Work:
        return self.inner.ask(state.inner, cohort, facts, work)

    def combine(self, state: Any, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        """Multiply the changes by 1 / r_k, estimated from earlier turns only."""
        responses, drawn = Responses.over(state.responses), opened.cohort.agents
        each = responses.adjustments(drawn[updates.place], most=self.most)
        responses.record_round(drawn, updates)
        if self.repays:
            adjusted = self._repaid(state.owed, opened.cohort, updates, each, facts)
        else:
            adjusted = updates.multiplied(each)
        adjusted = adjusted._replace(complete=True)
        step, inner, evidence = self.inner.combine(state.inner, opened, adjusted, facts)
        if adjusted.capped is not None:
            evidence = evidence._replace(capped=int(adjusted.capped.sum()))
        return step, AdjustedState(inner, state.responses, state.owed), evidence

    def _repaid(
        self, owed: np.ndarray, cohort: Cohort, updates: Updates, each: np.ndarray, facts: Facts
    ) -> Updates:
        """The updates multiplied, as far as their agents are owed that; writes into `owed`."""
        weights = self.counts(cohort, facts) * np.ones(cohort.agents.size)
        who, own, silent = cohort.agents[updates.place], weights[updates.place], updates.silent()
        room = np.divide(owed[who], own * updates.factor, out=np.zeros(who.size), where=own > 0.0)
        adjusted = updates.multiplied(np.minimum(each, 1.0 + room))
        owed[who] = np.maximum(owed[who] - own * (adjusted.factor - updates.factor), 0.0)
        owed[cohort.agents[silent]] += weights[silent] / self.patience
        return adjusted


@dataclass(frozen=True)
class Extrapolated(Over):
    """An estimator whose step is multiplied by max(1, mean |change|^2 / (2 (|step|^2 + epsilon))).

    FedExP: Jhunjhunwala, Wang and Joshi (ICLR 2023), arXiv 2301.09604. Where
    changes point in different directions, their mean is short, and the cloud can step further.

    Args:
        inner: the wrapped estimator; the mean of |change|^2 uses its weights.
        epsilon: keeps the factor small where the step nearly vanishes; the paper tunes it.
    """

    epsilon: Positive = 1e-3

    @property
    def needs(self) -> dict[str, str]:
        remedy = "the lengths of the changes count; use HorvitzThompson()"
        return getattr(self.inner, "needs", {}) | {"weights on the change": remedy}

    def combine(self, state: Any, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        change, cohort = trained_changes(updates, facts), opened.cohort
        squares = row_squares(change)  # before `combine`, which may overwrite the changes
        step, state, evidence = self.inner.combine(state, opened, updates, facts)
        if not squares.size:
            return step, state, evidence
        counts = (self.counts(cohort, facts) * np.ones(cohort.agents.size))[updates.place]
        counts = counts * updates.factor
        mean = inner(counts, squares) / counts.sum()
        factor = max(1.0, mean / (2.0 * (inner(step, step) + self.epsilon)))
        return factor * step, state, evidence
