"""What the cloud believes of a score, and what an agent reveals by it.

A score is one number derived from gradient norms. The cloud names a range; an agent clips its
score to it, and may add noise before it leaves. The cloud refuses what is not a number in that
range, and limits how likely any agent can make itself to be drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from isfed.base.argument_types import check_fields
from isfed.sampling import score_table as tables
from isfed.sampling.policies import Table


@dataclass(frozen=True)
class ScoreRange:
    """The scores that the cloud accepts.

    low: the smallest; noise on scores needs one above 0.
    high: the largest.

    >>> ScoreRange(0.01, 100.0).clip(1e6)
    100.0
    """

    low: float = 0.0
    high: float = 1e9

    def __post_init__(self) -> None:
        check_fields(self)
        if not (math.isfinite(self.high) and 0.0 <= self.low < self.high):
            raise ValueError(f"score range {self.low} to {self.high} must have 0 <= low < high")

    def clip(self, score: float) -> float:
        """The nearest score in the range."""
        return min(max(score, self.low), self.high)

    def accepts(self, score: float) -> bool:
        """Whether it is a finite number in the range; NaN is in no range."""
        return self.low <= score <= self.high

    def epsilon(self, noise: float) -> float:
        """The privacy loss of one noisy score: a report has local differential privacy epsilon."""
        return math.log(self.high / self.low) / noise if self.low > 0.0 and noise else math.inf


def check_noise(scores: ScoreRange, noise: float) -> None:
    """Raise a ValueError unless noise of that scale can be added to scores of that range."""
    if not (math.isfinite(noise) and noise >= 0.0):
        raise ValueError(f"score_noise={noise} must be a number >= 0")
    if noise > 0.0 and not scores.low > 0.0:
        raise ValueError(
            f"score_noise={noise} needs a score range that begins above 0, not at {scores.low}: "
            "the noise is relative, and its guarantee is log(high / low) / score_noise"
        )


def revealed_score(
    score: float, scores: ScoreRange, *, noise: float, rng: np.random.Generator
) -> float:
    """The score as it leaves the agent: clipped, with Laplace noise of that scale on its logarithm.

    On the logarithm because scores differ by factors: absolute noise that hides the largest would
    drown all others. Clipped again, which as post-processing costs no privacy.
    """
    clipped = scores.clip(score)
    if noise == 0.0:
        return clipped
    check_noise(scores, noise)
    return scores.clip(math.exp(math.log(clipped) + rng.laplace(scale=noise)))


def default_most_inclusion(num_agents: int, num_active: int) -> float:
    """Half, or three times the uniform inclusion probability L / K where that is more."""
    return min(1.0, max(0.5, 3.0 * num_active / num_agents))


def check_most_inclusion(most: float, *, num_agents: int, num_active: int) -> None:
    """Raise a ValueError for a cap that cannot be kept."""
    if not num_active / num_agents <= most <= 1.0:
        raise ValueError(
            f"most_inclusion={most} must be between num_active / num_agents = "
            f"{num_active / num_agents:.3g} and 1"
        )


def limit_inclusion(table: Table, num_active: int, most: float) -> int:
    """Lower the scores that make an agent's inclusion exceed `most`; how many were lowered.

    With scores s, unseen ones counting as the mean of the n seen, and floor f,
    p_k = (1 - f) s_k n / (K sum of seen s) + f / K. All that exceed most / L become equal.
    """
    floor = table.policy.floor
    if table.policy.equal or most >= 1.0 or floor >= 1.0:
        return 0
    share = (most / num_active - floor / table.count) / (1.0 - floor)
    scores = table.scores
    seen = scores[scores >= 0.0]
    if not seen.size:
        return 0
    share *= table.count / seen.size  # of the sum of the seen scores
    if seen.max() <= share * seen.sum() * (1.0 + 1e-12):
        return 0
    descending = np.sort(seen)[::-1]
    # The sums of all after the first, the first two, ...: from the small end, or they cancel.
    rest = np.append(np.cumsum(descending[::-1])[::-1][1:], 0.0)
    limit = descending[-1]
    for above, left in enumerate(rest, start=1):
        if 1.0 - above * share <= 0.0:  # so many equal ones keep within the cap by themselves
            limit = descending[above - 1]
            break
        limit = share * left / (1.0 - above * share)
        if above == seen.size or limit >= descending[above]:
            break
    lowered = int((scores > limit).sum())
    np.minimum(scores, limit, out=scores)  # in place: the mark of an unseen one, -1, stays
    tables.rebuild(table.nodes, 0, table.count)
    return lowered
