"""What every way to learn ends with at its best step size within a budget: no training run.

In the eigenbasis of the Hessian at w^o a model is a sum over rounds of the noise s_j that each of
them added, times a weight: mu (1 - mu lambda)^(T-1-j) for the last model, and the mean of such
weights for an averaged one. The variance follows from these weights and the covariance of s_j:

- independent rounds: sum_j w_j^2 Var(s_j);
- passes: what agents contribute sums to nothing over a pass, so that only the deviations of the
  weights from their mean over the pass count, and what rounding to whole places leaves;
- control variates: what agents contribute fades as they are heard, up to what their gradients move;
- learned scores: those of an agent or example are those of the models at its last turns.

Var(s_j) goes from that at the start to that at w^o as the squared distance does, and grows with the
step size as the mean-square limit says. All is to first order: exact for least squares at small
steps, an estimate for the others.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from isfed.methods.iterate_average import first_averaged
from isfed.theory.learned_scores import LearnedScores

FACTOR = math.sqrt(2.0)  # between two step sizes
MOST_OF_LIMIT = 0.7  # of the mean-square limit: beyond, single draws throw a run far off
SMALLEST = 48  # factors below that: where the search for a step size ends
FORGIVEN = 1.05  # times the least loss: of step sizes of an average within it, the middle one
LATE = 0.95  # of the rounds: the middle of the last tenth, over which runs are measured
SETTLES = 2  # until the noise agrees with the scores that it shakes
REACHES = 64  # of a run: how finely is said when a level is reached
LOOKS = 5  # at a run's loss over its last tenth
INTEGRAL = -14.0, 40.0, 500  # over log t, and how many points


@dataclass(frozen=True)
class TunedWay:
    """A way at the step size that is predicted to be its best."""

    name: str
    step_size: float
    excess: float  # P(w) - P(w^o) at the end, on average over runs
    typical: float  # the same, averaged over the runs' logarithms
    reaches: int | None = None  # rounds until the loss that FedAvg ends with; None: not within them
    uploads: float = 1.0  # those of a round, over those of FedAvg
    gradients: float = 1.0
    stderr_db: float = 0.0  # of the gain over FedAvg, where it is read from runs
    how: str = "computed"  # or "from a few runs", or "roughly computed"


@dataclass(frozen=True, eq=False)
class NoisePath:
    """The error of one way along its run, direction by direction of the Hessian's eigenbasis.

    Args:
        curvature: (M,) the eigenvalues.
        start: (M,) w_0 - w^o.
        agents, examples: (2, M) the variance of a round by its two sources, at w_0 and at w^o.
        limit: the mean-square limit of the step size.
        drift: excess risk by local steps, over mu^2.
        moved: (M,) what gradients move past control variates, over mu.
        fades: the share of what agents contribute that control variates take away in a round.
        per_pass: rounds of a pass; 1 where agents are drawn anew in every round.
        rounding: (M,) the variance of a pass's mean by whole numbers of places.
        growth: (2, M, M) how the variance by agents, and by examples, along direction i grows with
            the squared distance from w^o along j; None if not known: then as `limit` says.
        scores: of a way that learns its probabilities, known with `growth` only.
    """

    curvature: np.ndarray
    start: np.ndarray
    agents: np.ndarray
    examples: np.ndarray
    limit: float
    drift: float = 0.0
    moved: np.ndarray | float = 0.0
    fades: float = 0.0
    per_pass: int = 1
    rounding: np.ndarray | float = 0.0
    growth: np.ndarray | None = None
    scores: LearnedScores | None = None

    def error(self, step: float, rounds: int, *, averaged: bool) -> tuple[np.ndarray, np.ndarray]:
        """(M,) the mean error and its variance after so many rounds."""
        shrink, count = 1.0 - step * self.curvature, np.arange(rounds)[:, None]
        left = shrink ** (rounds - 1 - count)  # (T, M)
        begin = first_averaged(rounds) if averaged else rounds - 1
        if averaged:  # the mean of what remains of a round's noise in the models that are averaged
            sums = np.cumsum(left[::-1], axis=0)[::-1]  # of the powers 0 to T-1-j
            sums[:begin] = left[:begin] / left[begin] * sums[begin] if begin else sums[:begin]
            left = np.nan_to_num(sums) / (rounds - begin)
        mean = self.start * left[0] * shrink
        away = self.curvature * self.start**2
        risk = (shrink ** (2 * count) @ (0.5 * away))[:, None]  # of the mean error
        far = risk / max(0.5 * float(away.sum()), 1e-300)
        agents, examples = (
            pair[1] + far * (pair[0] - pair[1]) for pair in (self.agents, self.examples)
        )
        fade = (1.0 - self.fades) ** count
        agents = agents * fade
        noise = examples + step * self.moved
        if self.growth is not None:
            more, worse, after = 0.0, 0.0, 1.0 - far
            if self.scores is not None and (ages := self.scores.agents) is not None:
                then = shrink ** (2.0 * ages.times[:, None]) @ away / max(float(away.sum()), 1e-300)
                by_agents, by_examples = ages.added(step, np.sqrt(then), rounds)
                agents, noise = agents + after * by_agents, noise + after * by_examples
            for _ in range(SETTLES if self.scores is not None else 1):
                grown = self.growth.sum(axis=0) + worse
                spread = self._spread(step, agents + noise + more, grown)
                if self.scores is not None:
                    jitter = 0.5 * float(self.curvature @ spread[-1])
                    more, worse = self.scores.of_examples(risk[:, 0], jitter)
                    more = after * more
            agents = agents + fade * (spread @ self.growth[0].T)
            noise = noise + more + spread @ (self.growth[1] + worse).T
        if self.per_pass > 1:
            full = -(-rounds // self.per_pass) * self.per_pass
            passes = np.zeros((full, left.shape[1]))
            passes[:rounds] = left
            passes = passes.reshape(-1, self.per_pass, left.shape[1])
            sums = passes.sum(axis=1)
            apart = (passes - sums[:, None] / self.per_pass).reshape(full, -1)
            agents = np.pad(agents, ((0, full - rounds), (0, 0)), mode="edge")  # the pass goes on
            variance = (apart**2 * agents).sum(axis=0) * self.per_pass / (self.per_pass - 1)
            variance = variance + (sums**2).sum(axis=0) * self.rounding
            variance = variance + (left**2 * noise).sum(axis=0)
        else:
            variance = (left**2 * (agents + noise)).sum(axis=0)
        more = 1.0 if self.growth is not None else 1.0 / (1.0 - step / self.limit)
        variance = step**2 * variance * more
        return mean, variance

    def spread_of(self, step: float, rounds: int) -> np.ndarray:
        """(M,) the variance of the model after so many rounds at w^o."""
        assert self.growth is not None
        noise = np.tile(self.agents[1] + self.examples[1], (rounds + 1, 1))
        return self._spread(step, noise, self.growth.sum(axis=0))[-1]

    def _spread(self, step: float, noise: np.ndarray, growth: np.ndarray) -> np.ndarray:
        """(T, M) the variance of the model before every round, which the noise itself widens.

        x_(t+1) = A x_t + b_t, in about sqrt(T) stretches side by side: from 0 within each, and then
        with what the one before leaves.
        """
        keep = np.diag((1.0 - step * self.curvature) ** 2) + step**2 * growth
        rounds, size = noise.shape
        length = math.isqrt(rounds - 1) + 1
        stretches = -(-rounds // length)
        spread = np.zeros((stretches * length, size))
        spread[1:rounds] = step**2 * noise[:-1]
        spread = spread.reshape(stretches, length, size)
        powers = np.empty((length, size, size))  # A, A^2, ...
        powers[0] = keep
        for place in range(1, length):
            powers[place] = powers[place - 1] @ keep
            spread[:, place] += spread[:, place - 1] @ keep.T
        for before, after in itertools.pairwise(spread):
            after += powers @ before[-1]
        return spread.reshape(-1, size)[:rounds]

    def excess(self, step: float, rounds: int, *, averaged: bool) -> float:
        """E P(w) - P(w^o) in the middle of the last tenth of the rounds."""
        return self._risk(step, max(1, round(LATE * rounds)), averaged=averaged)

    def _risk(self, step: float, rounds: int, *, averaged: bool) -> float:
        with np.errstate(all="ignore"):
            mean, variance = self.error(step, rounds, averaged=averaged)
            value = 0.5 * float(self.curvature @ (mean**2 + variance)) + self.drift * step**2
        return value if math.isfinite(value) else math.inf

    def typical(self, step: float, rounds: int, *, averaged: bool) -> float:
        """exp(E log of the mean excess risk over the last tenth of the rounds), a run's usual one.

        Where few directions count, some runs end far higher than most, and the mean with them. The
        last tenth is looked at `LOOKS` times. From one look to the next a model remembers
        (1 - mu lambda)^rounds of its error, an average nearly all.
        """
        with np.errstate(all="ignore"):
            mean, variance = self.error(step, max(1, round(LATE * rounds)), averaged=averaged)
        if not np.isfinite(mean @ mean + variance.sum()):
            return math.inf
        apart = (1.0 - LATE) * 2.0 * rounds / LOOKS
        kept = np.abs(1.0 - step * self.curvature) ** (0.0 if averaged else apart)
        lags = np.abs(np.subtract.outer(np.arange(LOOKS), np.arange(LOOKS)))
        shares = np.linalg.eigvalsh(kept[:, None, None] ** lags) / LOOKS  # of every direction
        fixed = np.zeros_like(shares)
        fixed[:, -1] = 0.5 * self.curvature * mean**2
        weights = 0.5 * (self.curvature * variance)[:, None] * shares
        return typical_sum(weights.ravel(), fixed.ravel(), self.drift * step**2)

    def tuned(self, name: str, rounds: int, *, averaged: bool, **more: Any) -> TunedWay:
        """At the best of step sizes a factor sqrt(2) apart."""
        known: dict[int, float] = {}

        def at(place: int) -> float:
            if place not in known:
                step = self._step(place)
                known[place] = self.excess(step, rounds, averaged=averaged)
            return known[place]

        best = 0
        for stride in (8, 4, 2, 1):
            near = range(max(0, best - 2 * stride), min(SMALLEST, best + 2 * stride) + 1, stride)
            if stride == 8:
                near = range(0, SMALLEST + 1, stride)
            best = min(near, key=at)
        if averaged:  # averaging forgives the step size: the middle of those that do as well
            alike = [p for p in known if known[p] <= FORGIVEN * at(best)]
            best = (min(alike) + max(alike)) // 2
        step = self._step(best)
        typical = self.typical(step, rounds, averaged=averaged)
        return TunedWay(name, step, at(best), typical, **more)

    def reaches(self, level: float, step: float, rounds: int, *, averaged: bool) -> int | None:
        """The first of so many rounds after which the mean excess risk is at most `level`."""

        def there(after: int) -> bool:
            return self._risk(step, after, averaged=averaged) <= level

        low, high = 0, rounds
        if not there(high):
            return None
        while high - low > max(1, rounds // REACHES):
            middle = (low + high) // 2
            low, high = (low, middle) if there(middle) else (middle, high)
        return high

    def _step(self, place: int) -> float:
        return MOST_OF_LIMIT * self.limit * FACTOR**-place


def typical_sum(weights: np.ndarray, fixed: np.ndarray, floor: float = 0.0) -> float:
    """exp(E log Q) of Q = floor + sum_i (sqrt(weights_i) z_i + sqrt(fixed_i))^2, z_i normal.

    log Q is the integral of (exp(-t) - exp(-t Q)) / t over t > 0, and E exp(-t Q) is a product.

    >>> round(math.log(typical_sum(np.ones(2), np.zeros(2))), 3)  # log 2 less Euler's constant
    0.116
    """
    whole = float(weights.sum() + fixed.sum()) + floor
    if not whole > 0.0:
        return 0.0
    weights, fixed = np.maximum(weights, 0.0) / whole, fixed / whole
    points = np.linspace(*INTEGRAL)
    t = np.exp(points)[:, None]
    wide = 1.0 + 2.0 * t * weights
    log_mean = (-0.5 * np.log(wide) - t * fixed / wide).sum(axis=1) - t[:, 0] * floor / whole
    inside = np.exp(-t[:, 0]) - np.exp(log_mean)
    return whole * math.exp(float(inside.sum()) * (points[1] - points[0]))
