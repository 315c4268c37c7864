"""What it costs that scores are those of other models: of the start, of later ones, or of none.

An example's score is that of its last draw, so that it stays for about 1 / pi draws of its agent,
pi the inclusion probability that it gives. Low scores stay longest. Of every example it is followed
how likely its score is none yet, one of the start, or one of models around w^o. For the scores of
agents see `agent_score_noise`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from isfed.theory.agent_score_noise import AgentScores

STEPS = 32  # in time, in which the chances are followed


@dataclass(frozen=True, eq=False)
class LearnedScores:
    """The noise of a way that learns its probabilities, with gradients at w^o.

    Args:
        turns: (n,) local steps of an example's agent per round.
        weights: (n,) what 1 / pi of an example counts in the variance.
        squares: (n, M) its squared gradient at w^o.
        growth: (n, M) the root of how much `squares` grow along i with the distance along j:
            growth_i growth_j.
        unseen, start, settled: (n,) 1 / pi before its first draw, by the score at w_0, at w^o.
        around: (D, S, n) by those of S models around w^o, at rising distances ...
        risks: (D,) ... with these excess risks.
        level: P(w^o): where the excess risk is below, scores of examples are those around w^o.
        agents: the same of agents; None where these are too many.
    """

    turns: np.ndarray
    weights: np.ndarray
    squares: np.ndarray
    growth: np.ndarray
    unseen: np.ndarray
    start: np.ndarray
    settled: np.ndarray
    around: np.ndarray
    risks: np.ndarray
    level: float
    agents: AgentScores | None = None

    def of_examples(self, risk: np.ndarray, jitter: float) -> tuple[np.ndarray, np.ndarray]:
        """(T, M) what is added to the variance of a round, and (M, M) to its growth.

        Args:
            risk: (T,) the excess risk of the mean model before every round.
            jitter: that of the noise around it.
        """
        rounds, length = risk.size, risk.size / STEPS
        inverse = np.vstack([self.unseen, self.start, self._around(jitter)])
        leave = length * self.turns / inverse  # expected draws in a step of time
        stay = 1.0 / (1.0 + leave)  # implicit Euler: stable, and right in the end
        chance = np.zeros_like(inverse)
        chance[0] = 1.0
        enter = np.zeros(len(inverse))
        added, late = [], np.zeros(self.weights.size)
        for step in range(STEPS):
            now = risk[min(int((step + 0.5) * length), rounds - 1)]
            enter[1] = now / (now + self.level)
            enter[2:] = (1.0 - enter[1]) / (len(inverse) - 2)
            drawn = (chance * leave * stay).sum(axis=0) / (1.0 - enter @ (leave * stay))
            chance = (chance + enter[:, None] * drawn) * stay
            worse = self.weights * ((chance * inverse).sum(axis=0) - self.settled)
            added.append(worse @ self.squares)
            late += worse * (2 * step >= STEPS) / (STEPS // 2)
        places = np.minimum(np.arange(rounds) * STEPS // rounds, STEPS - 1)
        return np.array(added)[places], (self.growth * late[:, None]).T @ self.growth

    def _around(self, risk: float) -> np.ndarray:
        """(S, n) 1 / pi by scores of models around w^o with this excess risk."""
        if risk <= self.risks[0]:
            share = max(risk, 0.0) / self.risks[0]
            return self.settled ** (1.0 - share) * self.around[0] ** share
        place = min(int(np.searchsorted(self.risks, risk)), self.risks.size - 1)
        low, high = self.risks[place - 1], self.risks[place]
        share = min(math.log(risk / low) / math.log(high / low), 1.0)
        return self.around[place - 1] ** (1.0 - share) * self.around[place] ** share
