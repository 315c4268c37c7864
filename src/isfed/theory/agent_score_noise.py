"""How unequally agents are drawn because their scores are averages over few turns.

Agents have their turns at random times. A score is made of averages over an agent's turns, in which
those far from w^o remain: more of them with agents that had early turns. So agents that are alike
are drawn with unlike probabilities, and those that matter most with too small ones. Followed are
the mean and the variance of these averages over all histories of turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import special

from isfed.federation.variate_updates import FORGET

STAGES, EVERY = 128, 4  # in time, and every how many of them the probabilities are looked at
NODES = special.ndtri((np.arange(6) + 0.5) / 6.0)  # histories of an agent that stand for all
MOST_CAPPED = 20  # steps until the probabilities above 1 are cut
RATE = 0.1  # of the averages in an agent's score, see `Memory`


def averages(
    values: np.ndarray, turns: float, rates: Any, *, plain: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(S, n) the mean and the variance, over agents, of an average over an agent's turns.

    Args:
        values: (S,) what a turn shows in every stage.
        turns: of an agent in a stage, expected.
        rates: (n,) how far the average moves at a turn; at the first it takes what it sees.
        plain: whether it is the mean of all turns as long as there are fewer than 1 / rate.
    """
    rates = np.atleast_1d(np.asarray(rates, float))
    stay, unheard = math.exp(-turns), 1.0
    mean, square = np.zeros_like(rates), np.zeros_like(rates)
    found = np.empty((2, values.size, rates.size))
    for stage, now in enumerate(values):
        known, first = 1.0 - unheard, unheard * (1.0 - stay)
        rate = rates
        if plain:
            had = turns * (stage + 0.5)
            rate = np.maximum(rates, 1.0 / (had / -math.expm1(-had) + 1.0))
        settled = (2.0 * (1.0 - rate) * now * mean + rate * now**2 * known) / (2.0 - rate)
        square += first * now**2 - np.expm1(-turns * rate * (2.0 - rate)) * (settled - square)
        mean += first * now - np.expm1(-turns * rate) * (known * now - mean)
        unheard -= first
        heard = 1.0 - unheard
        found[:, stage] = mean / heard, np.maximum(square / heard - (mean / heard) ** 2, 0.0)
    return found[0], found[1]


def _histories(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """(S, n, J) numbers above 0 with such a mean and variance."""
    ratio = np.divide(variance, mean**2, out=np.zeros_like(mean), where=mean > 0.0)
    spread = np.exp(np.sqrt(np.log1p(ratio))[..., None] * NODES)
    return mean[..., None] * spread / spread.mean(axis=-1, keepdims=True)


@dataclass(frozen=True, eq=False)
class Bounds:
    """The scores of importance sampling: 6 / (E B) spread + (3 + 6 / (E B)) |mean gradient|^2.

    The spread is made of the norms that are stored, of which a turn renews B E / N.

    Args:
        variation: (K,) 6 / (E_k B_k).
        renewed: (K,) B_k E_k / N_k.
        norms: (2, K) the root of the spread at w^o, and what is added to it at w_0.
        squares: (3, K) |g|^2, 2 <g, d> and |d|^2 of the mean gradient g at w^o and of what is added
            to it at w_0.
    """

    variation: np.ndarray
    renewed: np.ndarray
    norms: np.ndarray
    squares: np.ndarray

    def __call__(self, away: np.ndarray, turns: float, active: float) -> np.ndarray:
        """(S, K, J) squared scores.

        Args:
            away: (S,) the distance of the mean model from w^o over that at the start.
            turns: of an agent in a stage.
            active: turns of all agents in a stage.
        """
        at = slice(EVERY - 1, None, EVERY)
        rates = np.minimum(self.renewed, 1.0)
        of_means, of_norms = (
            _histories(mean[at], variance[at])
            for mean, variance in (
                averages(away, turns, RATE, plain=False), averages(away, turns, rates, plain=True)
            )
        )  # fmt: skip
        norms = self.norms[0][:, None] + self.norms[1][:, None] * of_norms
        of_mean = sum(part[:, None] * of_means**power for power, part in enumerate(self.squares))
        variation = self.variation[:, None]
        return variation * norms**2 + (3.0 + variation) * of_mean


@dataclass(frozen=True, eq=False)
class Innovations:
    """The scores of control variates: the noise of a turn, and the gain times |innovation|^2.

    Args:
        noise: (2, K) the variance of a turn at w^o, and what is added to it at w_0.
        settled: (K,) the part of |innovation|^2 at w^o that is no noise.
        moved: (K,) the squared difference of an agent's gradients at w_0 and at w^o.
    """

    noise: np.ndarray
    settled: np.ndarray
    moved: np.ndarray

    def __call__(self, away: np.ndarray, turns: float, active: float) -> np.ndarray:
        """(S, K, J) squared scores; see `Bounds`."""
        gain, known, square = np.empty_like(away), 0.0, 0.0  # of c_k: what it knows of `away`
        missed, agreement, length = np.empty_like(away), 0.0, 0.0
        noise, settled, moved = self.noise.mean(axis=1), self.settled.mean(), self.moved.mean()
        unheard = 1.0
        for stage, now in enumerate(away):
            first = unheard * -math.expm1(-turns)
            heard = 1.0 - unheard + first
            missed[stage] = max(now**2 - 2.0 * now * known + square, 0.0)
            new = (now - known) ** 2  # of those heard first, for whom c_k is the mean of the others
            missed[stage] += first / heard * (new - missed[stage])
            fresh = -math.expm1(-FORGET * active)
            agreement += fresh * (moved * missed[stage] + settled - agreement)
            whole = moved * missed[stage] + settled + noise[0] + noise[1] * now**2
            length += fresh * (whole - length)
            gain[stage] = rate = agreement / length if length > 0.0 else 0.0
            towards = (2.0 * (1.0 - rate) * now * known + rate * now**2) / (2.0 - rate)
            square -= math.expm1(-turns * rate * (2.0 - rate)) * (towards - square)
            known -= math.expm1(-turns * rate) * (now - known)
            unheard -= first
        mean, variance = averages(away**2, turns, RATE, plain=True)
        of_missed = averages(missed, turns, RATE, plain=True)[0]
        at = slice(EVERY - 1, None, EVERY)
        far = _histories(mean[at], variance[at])
        share = np.divide(of_missed, mean, out=np.zeros_like(mean), where=mean > 0.0)[at]
        innovations = gain[at, None, None] * share[:, :, None] * far * self.moved[:, None]
        return (self.noise[0] + self.settled)[:, None] + self.noise[1][:, None] * far + innovations


def inclusion_over(
    scores: np.ndarray, unheard: np.ndarray, num_active: float, floor: float
) -> tuple[np.ndarray, np.ndarray]:
    """(S, K, J) the inclusion probabilities that go with scores, and (S, 1, J) their weights.

    The last of J is that of an agent that was never heard, which counts as the mean of the others.

    Args:
        scores: (S, K, J - 1) of histories that are equally likely.
        unheard: (S,) the share of the agents that were never heard.
        num_active: L, or a part of it where K are a part of the agents.
        floor: the share of uniform probability.
    """
    count = scores.shape[1]
    scores = scores / np.maximum(scores.mean(axis=(1, 2), keepdims=True), 1e-300)
    scores = np.concatenate([scores, np.ones((len(scores), count, 1))], axis=2)
    weights = np.empty((len(scores), 1, scores.shape[2]))
    weights[:, 0, -1] = unheard
    weights[:, 0, :-1] = ((1.0 - unheard) / (scores.shape[2] - 1))[:, None]
    chances = num_active / count * ((1.0 - floor) * scores + floor)
    for _ in range(MOST_CAPPED):
        capped = chances >= 1.0
        if not capped.any():
            break
        free = np.where(capped, 0.0, chances)
        left = num_active - (weights * capped).sum(axis=(1, 2))
        scale = left / np.maximum((weights * free).sum(axis=(1, 2)), 1e-300)
        if np.all(scale <= 1.0 + 1e-9):
            break
        chances = np.where(capped, 1.0, free * scale[:, None, None])
    return np.minimum(chances, 1.0), weights


@dataclass(frozen=True, eq=False)
class AgentScores:
    """What it adds to the variance of a round that the agents' scores are those of their turns.

    Args:
        squares: the squared scores along a run, `Bounds` or `Innovations`.
        heard: L / K.
        floor: the share of uniform probability.
        rounds: of a run.
        variance: from (K,) inclusion probabilities to (M,) the variance by agents and by examples.
        settled: (K,) the inclusion probabilities by the scores at w^o.
    """

    squares: Callable[..., np.ndarray]
    heard: float
    floor: float
    rounds: int
    variance: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    settled: np.ndarray
    known: dict[float, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    @property
    def times(self) -> np.ndarray:
        """(S,) the rounds in the middle of the stages."""
        return (np.arange(STAGES) + 0.5) * self.rounds / STAGES

    def added(self, step: float, away: np.ndarray, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        """(T, M) what is added to the variance by agents and by examples in every round.

        Args:
            step: the step size, by which it is remembered.
            away: (S,) how far the mean model is from w^o at `times`, over the start.
            rounds: how many.
        """
        if step not in self.known:
            self.known[step] = self._added(away)
        places = np.arange(rounds) * (STAGES // EVERY) // self.rounds
        places = np.minimum(places, STAGES // EVERY - 1)
        return tuple(part[places] for part in self.known[step])  # type: ignore[return-value]

    def _added(self, away: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count, length = self.settled.size, self.rounds / STAGES
        turns = self.heard * length
        squares = self.squares(away, turns, turns * count)
        end = length * EVERY * (np.arange(len(squares)) + 1.0)
        unheard = np.exp(-self.heard * end)
        chances, weights = inclusion_over(
            np.sqrt(np.maximum(squares, 0.0)), unheard, self.heard * count, self.floor
        )
        inverse = (weights / chances).sum(axis=2)
        before = self.variance(self.settled)
        after = [self.variance(1.0 / row) for row in inverse]
        return tuple(  # type: ignore[return-value]
            np.array([row[part] for row in after]) - before[part] for part in range(2)
        )
