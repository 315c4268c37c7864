"""How the cloud treats agents that are absent, slow, wrong or hostile, and what agents reveal.

A score is one number derived from gradient norms. The cloud names a range; an agent clips its score
to it, and may add noise before it leaves. The cloud refuses what is not a number in that range, and
limits how likely any agent can make itself to be drawn.

A change that is longer than `clip` is shortened before it is weighted. An agent drawn with
inclusion probability pi counts 1 / pi times, so its mean push is at most clip / K, however often
its score has it drawn. Noise of standard deviation noise * clip / L is added to every coordinate of
the step; `isfed.methods.private` says when that has an epsilon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from isfed.base.argument_checks import check_fields
from isfed.base.jit import compiled, jit_inline
from isfed.base.portable_arithmetic import norm
from isfed.federation.response_rates import LARGEST_ADJUSTMENT, Absences
from isfed.sampling import score_table as tables
from isfed.sampling.policies import Table


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The largest length of a change, and the noise relative to it.

    Args:
        clip: the largest length of an agent's change before it is weighted; at an agent, of what
            leaves it. In the cloud, where epsilon is stated, it is that of an agent drawn with
            probability L / K, and others are clipped so that they lose the same privacy.
        noise: the standard deviation of the noise on every coordinate, in multiples of what one
            agent can contribute: clip / L in the cloud, clip at an agent.
        delta: the chance that the statement of epsilon fails.
        rounds: how many rounds are planned; only the clips of unequal probabilities depend on it.

    Examples:
        >>> Privacy(clip=1.0).shorten(np.array([3.0, 4.0]))
        array([0.6, 0.8])
    """

    clip: float
    noise: float = 0.0
    # Not in the text by which a checkpoint knows its job: jobs of the version before go on.
    delta: float = field(default=1e-5, repr=False)
    rounds: int = field(default=1000, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0.0 < self.delta < 1.0:
            raise ValueError(f"delta={self.delta} must be between 0 and 1")
        if self.rounds < 1:
            raise ValueError(f"rounds={self.rounds} must be a number of at least 1")
        if not (math.isfinite(self.clip) and self.clip > 0.0):
            raise ValueError(f"clip={self.clip} must be a length greater than 0")
        if not (math.isfinite(self.noise) and self.noise >= 0.0):
            raise ValueError(f"noise={self.noise} must be a number >= 0")

    def factor(self, change: np.ndarray) -> float:
        """What shortens a change to `clip`: 1 for one that is short enough."""
        length = norm(change)
        return 1.0 if length <= self.clip else self.clip / length

    def shorten(self, change: np.ndarray) -> np.ndarray:
        """The change, at most `clip` long."""
        return self.factor(change) * change

    def disturbance(
        self, size: int, *, num_active: int = 1, rng: np.random.Generator | None = None
    ) -> np.ndarray:
        """The noise; from the system's entropy: noise that others can reproduce hides nothing."""
        rng = np.random.default_rng() if rng is None else rng
        return rng.normal(scale=self.noise * self.clip / num_active, size=size)


@dataclass(frozen=True)
class ScoreRange:
    """The scores that the cloud accepts.

    Args:
        low: the smallest; noise on scores needs one above 0.
        high: the largest.

    Examples:
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

    def contains(self, other: ScoreRange) -> bool:
        """Whether the other range is no wider on either side."""
        return self.low <= other.low and other.high <= self.high

    def epsilon(self, noise: float) -> float:
        """The privacy loss of one noisy score: a report has local differential privacy epsilon."""
        return math.log(self.high / self.low) / noise if self.low > 0.0 and noise else math.inf


@dataclass(frozen=True, kw_only=True)
class Safety:
    """How the cloud treats agents that are absent, slow, wrong or hostile.

    Args:
        absences: what an absence means: `Absences.DROP` counts a missing change as zero,
            `Absences.ADJUSTED` makes up for it by an estimate of how often the agent answers.
        largest_adjustment: the most that `Absences.ADJUSTED` multiplies a change by.
        enough: the share of the agents drawn whose answers may close a round.
        patience: the share of rounds that wait for all. An answer that came after the quorum counts
            1 / patience times there, which makes up for the rounds that did not wait for it.
        scores: the range of accepted scores; with control variates agents report a mean square.
        most_inclusion: the largest inclusion probability of any agent; None: one half, or three
            times L / K if that is more, up to 0.9 as long as L / K is below that.
        largest_change: a longer change is refused whatever the others send: it could overflow.
        largest_ratio: a change longer than this many times the median agent's is refused. Buffers,
            such as running variances, do not count in the length of a change.
        most_medians: a change longer than this many times the median agent's is shortened to that,
            or to what the spread of all lengths allows, see `isfed.federation.agent_records`.
        most_refusals: after so many refused changes in a row an agent is left out; 0: never.
        privacy: clipping and noise in the cloud; None: neither.
        silent_rounds: after so many rounds in a row in which nobody's answer could be used, a run
            ends with an error; 0: never.
    """

    absences: Absences = Absences.DROP
    largest_adjustment: float = LARGEST_ADJUSTMENT
    enough: float = 1.0
    patience: float = 0.25
    scores: ScoreRange = field(default_factory=ScoreRange)
    most_inclusion: float | None = None
    largest_change: float = 1e12
    largest_ratio: float = 1000.0
    most_refusals: int = 3
    privacy: Privacy | None = None
    silent_rounds: int = field(default=3, repr=False)
    most_medians: float = field(default=10.0, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        for name, low, high in (
            ("largest_adjustment", 1.0, np.inf),
            ("largest_ratio", 1.0, np.inf),
            ("most_medians", 1.0, np.inf),
            ("largest_change", 0.0, np.inf),
            ("most_refusals", 0, np.inf),
            ("silent_rounds", 0, np.inf),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name}={value} must be a number of at least {low:g}")
        for name in ("enough", "patience", "most_inclusion"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value <= 1.0:
                raise ValueError(f"{name}={value} must be above 0 and at most 1")
        if self.hides and self.enough < 1.0:
            raise ValueError(
                f"enough={self.enough} closes rounds early, and when they close tells who was "
                "drawn, which Privacy(noise=...) is to hide: use enough=1"
            )

    @property
    def hides(self) -> bool:
        """Whether noise in the cloud hides what single agents do."""
        return self.privacy is not None and self.privacy.noise > 0.0

    def without_limits(self) -> Safety:
        """The same with the limits that may become tighter as they were by default."""
        return replace(self, **LIMITS)


# Limits that may become tighter (smaller) during a job. These defaults are those of the version
# before, whose jobs go on.
LIMITS: dict[str, Any] = {
    "largest_adjustment": LARGEST_ADJUSTMENT, "largest_change": 1e12, "largest_ratio": 1000.0,
    "most_inclusion": None, "most_refusals": 3, "silent_rounds": 3,
    "most_medians": 10.0,
}  # fmt: skip


def tightened(before: np.ndarray, now: np.ndarray) -> list[str]:
    """Which limits are tighter than they were; a ValueError if one is looser.

    Args:
        before, now: the limits in the order of `LIMITS`; infinite where there is none.
    """
    changes = []
    for name, old, new in zip(LIMITS, before.tolist(), now.tolist(), strict=True):
        if not new <= old:
            raise ValueError(
                f"Safety({name}={new:g}) is looser than the {old:g} with which this job began: "
                "limits can only become tighter; give the old one, or another checkpoint to begin "
                "anew"
            )
        changes += [f"{name} from {old:g} to {new:g}"] if new < old else []
    return changes


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


def check_most_inclusion(most: float, *, num_agents: int, num_active: int) -> None:
    """Raise a ValueError for a cap that cannot be kept."""
    if not num_active / num_agents <= most <= 1.0:
        raise ValueError(
            f"most_inclusion={most} must be between num_active / num_agents = "
            f"{num_active / num_agents:.3g} and 1"
        )


def limit_inclusion(table: Table, num_active: int, most: float) -> int:
    """Lower the scores that make an agent's inclusion exceed `most`; how many were lowered.

    Unseen scores count as the mean of the n seen ones. With floor f,
    p_k = (1 - f) s_k n / (K sum of seen s) + f / K. All that exceed most / L become equal.
    """
    floor = table.policy.floor
    if table.policy.equal or most >= 1.0 or floor >= 1.0:
        return 0
    share = (most / num_active - floor / table.count) / (1.0 - floor)
    return _limit_scores(table.nodes, table.count, share)


@jit_inline
def _lift(total):
    """What scores of this sum are multiplied by first, lest a share of them loses digits."""
    return tables.LIFT if total < tables.TINY else 1.0


@compiled
def _limit_scores(nodes, count, share):
    seen, total, largest = 0, 0.0, 0.0
    for k in range(count):
        if nodes[k] >= 0.0:
            seen += 1
            total += nodes[k]
            largest = max(largest, nodes[k])
    if seen == 0:
        return 0
    share *= count / seen  # of the sum of the seen scores
    lift = _lift(total)
    if lift * largest <= share * (lift * total) * (1.0 + 1e-12):
        return 0
    ordered, place = np.empty(seen), 0
    for k in range(count):
        if nodes[k] >= 0.0:
            ordered[place] = nodes[k]
            place += 1
    ordered.sort()
    # The sums of the smallest, added from the small end, or they cancel.
    rest = np.empty(seen)
    total = 0.0
    for i in range(seen):
        rest[i] = total
        total += ordered[i]
    # The limit if the largest, the two largest, ... become equal; without room all are within it.
    for equal in range(1, seen + 1):
        place = seen - equal
        room = 1.0 - equal * share
        if room <= 0.0 or place == 0:  # by rounding alone there may be room for all to be equal
            limit = ordered[place]
            break
        lift = _lift(rest[place])
        lifted = share * (lift * rest[place]) / room
        limit = lifted / lift
        if lift * limit > lifted:  # rounded up to a subnormal number
            limit -= 5e-324  # the smallest of them
        if lifted >= lift * ordered[place - 1]:
            break
    lowered = 0
    for k in range(count):  # in place: the mark of an unseen one, -1, stays
        if nodes[k] > limit:
            nodes[k] = limit
            lowered += 1
    tables.rebuild(nodes, 0, count)
    return lowered
