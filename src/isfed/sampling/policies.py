"""Policies: a table of scores and a rule that refreshes it, the same for agents and for examples.

Probabilities are the scores normalised and mixed with a uniform floor. What differs between the
five policies is where the scores begin and which of them change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, Self, runtime_checkable

import numpy as np

from isfed.base.argument_checks import check_fields, check_share
from isfed.base.jit import jit_inline
from isfed.base.random_streams import Stream
from isfed.sampling import score_table as tables
from isfed.sampling import table_draws
from isfed.sampling.designs import Design
from isfed.sampling.designs.design_protocol import compiled_code
from isfed.sampling.designs.inclusion import check_floor


class Initial(IntEnum):
    """Where the scores begin."""

    EQUAL = 0
    OPTIMUM = 1
    UNSEEN = 2


class Refresh(IntEnum):
    """Which scores change, and how."""

    NEVER = 0
    ALL = 1
    TOUCHED_KEEP_MASS = 2
    TOUCHED = 3


class Score(IntEnum):
    """What an agent reports to the cloud as its score; of an example it is the gradient's norm."""

    BOUND = 0  # sqrt(sigma^2 + alpha |gradient|^2) of eq. (48), from this round alone
    AVERAGED_BOUND = 1  # the same from the stored norms and a moving average of the gradient
    SECOND_MOMENT = 2  # the root of a moving average of |estimate of the gradient|^2
    SPREAD = 3  # 1/N^2 sum_n |grad_n|^2 / p_n alone: the cloud makes a score of it


@runtime_checkable
class Policy(Protocol):
    """How scores begin, which of them change, and the uniform floor under the probabilities.

    A policy of your own may have `update(known, reported) -> scores` beside these: it is given what
    the table knew of the units just drawn (-1: nothing yet) and what they turned out to score, and
    returns what the table is to hold. docs/extend.md has an example.

    Attributes:
        name: the name in tables and figures.
        initial: where the scores begin.
        refresh: which scores change.
        floor: the share of the probability that is spread equally, from 0 to 1.
        score: what an agent reports; of an example it is the norm of the gradient.
        rate: how fast the averages behind an agent's report move.
        equal: whether all probabilities stay equal.
        learns: whether what a draw touches changes the scores.
    """

    @property
    def name(self) -> str: ...
    @property
    def initial(self) -> Initial: ...
    @property
    def refresh(self) -> Refresh: ...
    @property
    def floor(self) -> float: ...
    @property
    def score(self) -> Score: ...
    @property
    def rate(self) -> float: ...
    @property
    def equal(self) -> bool: ...
    @property
    def learns(self) -> bool: ...


# Looked up once: an enumeration takes its time over every member.
EQUAL, NEVER = Initial.EQUAL, Refresh.NEVER
LEARNING = Refresh.TOUCHED, Refresh.TOUCHED_KEEP_MASS


@dataclass(frozen=True)
class ScorePolicy:
    """Initial scores, what refreshes them, and a uniform floor under the probabilities.

    Args:
        name: what tables and figures call it.
        initial: the scores before the first round.
        refresh: which scores change in a round.
        floor: the share of uniform probability.
        score: what an agent reports.
        rate: how fast the averages in a score follow new gradients.
    """

    name: str
    initial: Initial
    refresh: Refresh
    floor: float = 0.0
    score: Score = Score.BOUND
    rate: float = 1.0

    def __post_init__(self) -> None:
        floor = check_floor(self.floor, name=f"floor of policy {self.name}")
        rate = check_share(self.rate, name=f"rate of policy {self.name}")
        check_fields(self)
        # As floats, for another type would compile every draw anew.
        object.__setattr__(self, "floor", floor)
        object.__setattr__(self, "rate", rate)

    @property
    def equal(self) -> bool:
        return self.initial == EQUAL and self.refresh == NEVER

    @property
    def learns(self) -> bool:
        return self.refresh in LEARNING


def Uniform() -> Policy:  # noqa: N802 (the five policies read as types)
    """Equal probabilities, always."""
    return ScorePolicy("uniform", Initial.EQUAL, Refresh.NEVER)


def Oracle(*, floor: float = 0.0) -> Policy:  # noqa: N802
    """The optimal probabilities of eq. (44) and (48) at w^o, which is not known in practice.

    Args:
        floor: the share of the probability that is spread equally, 0 to 1.
    """
    return ScorePolicy("oracle", Initial.OPTIMUM, Refresh.NEVER, floor)


def Current(*, floor: float = 0.01) -> Policy:  # noqa: N802
    """The optimal probabilities at the current model, eqs. (49), (50); every round reads all data.

    Args:
        floor: the share of the probability that is spread equally, 0 to 1.
    """
    return ScorePolicy("current", Initial.EQUAL, Refresh.ALL, floor)


def Running(*, floor: float = 0.3) -> Policy:  # noqa: N802
    """The paper's practical scheme, eqs. (52), (53): units just drawn share their total anew.

    Args:
        floor: the share of the probability that is spread equally; if small, rare steps are large.
    """
    return ScorePolicy("running", Initial.EQUAL, Refresh.TOUCHED_KEEP_MASS, floor)


def Memory(  # noqa: N802
    *, floor: float = 0.1, score: Score = Score.AVERAGED_BOUND, rate: float = 0.1
) -> Policy:
    """Remember the last score of every unit; units never drawn get the mean score of the others.

    Args:
        floor: the share of the probability that is spread equally; weights are at most 1 / floor.
        score: what an agent reports, see `Score`; it does not matter for examples.
        rate: how fast the averages in an agent's score move, above 0 and up to 1.
    """
    if not isinstance(score, Score) or score in (Score.BOUND, Score.SPREAD):
        raise ValueError(f"{score=!r}: a memory needs score=AVERAGED_BOUND or SECOND_MOMENT")
    return ScorePolicy("memory", Initial.UNSEEN, Refresh.TOUCHED, floor, score, rate)


# Numba reads plain integers faster than members of an enumeration.
KEEP_MASS = int(Refresh.TOUCHED_KEEP_MASS)
BOUND, AVERAGED_BOUND, SECOND_MOMENT, SPREAD = map(int, Score)
LARGEST_SCORE = 1e290  # the sum of a table of such scores is still finite


@jit_inline
def _drop_repeats(units, scores, num):
    """Keep the last score of every unit; returns how many units are left."""
    kept = 0
    for i in range(num):
        place = kept
        for j in range(kept):
            if units[j] == units[i]:
                place = j
        units[place] = units[i]
        scores[place] = scores[i]
        kept += place == kept
    return kept


@jit_inline
def refresh_touched(nodes, at, count, units, scores, num, refresh, design):
    """Write the scores of the units just drawn, by the policy's rule; may change the two lists."""
    if design == table_draws.REPLACEMENT:
        num = _drop_repeats(units, scores, num)
    total = 0.0
    for i in range(num):
        total += scores[i]
    if not total < LARGEST_SCORE:
        return  # the model is leaving every bound: a table of such scores could not be drawn from
    if refresh == KEEP_MASS:
        mass = 0.0
        for i in range(num):
            mass += nodes[at + units[i]]
        if not total > 0.0:
            return  # no gradient among them: their probabilities stay
        for i in range(num):
            scores[i] = scores[i] / total * mass  # eq. (52), (53)
    tables.swap_scores(nodes, at, count, units, scores, 0, num)


@jit_inline
def take_scores(nodes, at, count):
    """Make a table of the scores written to its leaves; of equal ones if some are no numbers."""
    tables.rebuild(nodes, at, count)
    root = tables.root_of(at, count)
    if not (nodes[root] < LARGEST_SCORE and nodes[root + 1] == count):
        tables.fill_table(nodes, at, count, 1.0)


@jit_inline
def bound(steps, batch, spread, gradient_square):
    """sqrt(sigma^2 + alpha |gradient|^2) of eq. (48); sigma^2 = 6 spread / (E_k B_k), eq. (23)."""
    variation = 6.0 / (steps * batch)
    return math.sqrt(variation * spread + (3.0 + variation) * gradient_square)


@jit_inline
def spread_of_norms(norms, count, floor, equal):
    """1/N^2 sum_n |grad_n|^2 / p_n for the probabilities that the norms themselves would give."""
    total = 0.0
    for i in range(count):
        total += norms[i]
    share = 0.0 if equal or not total > 0.0 else (1.0 - floor) / total
    rest = (1.0 if share == 0.0 else floor) / count
    spread = 0.0
    for i in range(count):
        prob = share * norms[i] + rest
        spread += norms[i] * norms[i] / prob if prob > 0.0 else 0.0
    return spread / (count * float(count))


@jit_inline
def score_of_norms(norms, count, gradient_square, steps, batch, floor, equal):
    """An agent's score from the gradient norms of all its examples, eq. (48); sigma^2: eq. (23).

    `gradient_square` is |gradient of its risk|^2; `floor`, `equal`: how its examples are drawn.
    """
    return bound(steps, batch, spread_of_norms(norms, count, floor, equal), gradient_square)


@jit_inline
def agent_score(rule, rate, steps, batch, spread, stored, gradient, memory, at):
    """What an agent reports after its turn; `memory[at:]` is what it remembers for it.

    `gradient` is its estimate of its own gradient, `spread` this round's estimate of
    1/N^2 sum_n |grad_n|^2 / p_n, and `stored` the same from stored norms (negative if none are).
    memory[at] is a moving average, negative before the first turn.
    """
    square = 0.0
    for j in range(gradient.size):
        square += gradient[j] * gradient[j]
    if rule == BOUND:
        return bound(steps, batch, spread, square)
    if rule == SPREAD:  # averaged where the score is made
        return stored if stored >= 0.0 else spread
    first = memory[at] < 0.0
    if rule == SECOND_MOMENT:
        memory[at] = square if first else (1.0 - rate) * memory[at] + rate * square
        return math.sqrt(memory[at])
    if stored >= 0.0:
        memory[at] = stored
    else:
        memory[at] = spread if first else (1.0 - rate) * memory[at] + rate * spread
    square = 0.0
    for j in range(gradient.size):
        average = memory[at + 1 + j]
        average = gradient[j] if first else (1.0 - rate) * average + rate * gradient[j]
        memory[at + 1 + j] = average
        square += average * average
    return bound(steps, batch, memory[at], square)


def memory_size(policy: Policy, num_params: int) -> int:
    """How many numbers an agent remembers for the score it reports under this policy."""
    if not policy.learns or policy.score in (Score.BOUND, Score.SPREAD):
        return 0
    return 1 + num_params if policy.score == Score.AVERAGED_BOUND else 1


def initial_score(policy: Policy) -> float:
    """What every leaf of a fresh table holds (the oracle's scores are written afterwards)."""
    return tables.UNSEEN if policy.initial == Initial.UNSEEN else 1.0


def compiled_policy(policy: Policy) -> bool:
    """Whether compiled code knows a policy."""
    return not hasattr(policy, "update")


class Table:
    """The scores of one population under one policy and one design, for agents or for examples."""

    def __init__(self, count: int, policy: Policy, design: Design) -> None:
        self.count, self.policy, self.design = count, policy, design
        self.nodes = np.empty(tables.table_size(count))
        tables.fill_table(self.nodes, 0, count, initial_score(policy))

    @classmethod
    def over(cls, nodes: np.ndarray, count: int, policy: Policy, design: Design) -> Self:
        """A table over nodes that somebody else keeps."""
        table = cls.__new__(cls)
        table.nodes, table.count, table.policy, table.design = nodes, count, policy, design
        return table

    @property
    def scores(self) -> np.ndarray:
        """The scores as they stand; -1 where a unit was never seen."""
        return self.nodes[: self.count]

    def draw(self, num: int, stream: Stream) -> tuple[np.ndarray, np.ndarray]:
        """The units drawn, and for each the inclusion probability over `num` (p_k or p_n)."""
        code = compiled_code(type(self.design))
        if code is None:  # a design that compiled code does not know
            inclusion = self.inclusion(num)
            units = self.design.draw(inclusion, stream)
            return units, inclusion[units] / num
        equal = self.policy.equal and code in table_draws.EQUAL_WITHOUT_TABLE
        floor, state = self.policy.floor, stream.state
        return table_draws.draw_from_table(self.nodes, self.count, floor, num, code, equal, state)

    def refresh(self, units: np.ndarray, scores: np.ndarray) -> None:
        """Tell the table what the drawn units turned out to score."""
        if not self.policy.learns:
            return
        update = getattr(self.policy, "update", None)
        if update is not None:
            scores = np.asarray(update(self.scores[units], scores), np.float64)
            if scores.shape != units.shape or not (np.isfinite(scores) & (scores >= 0.0)).all():
                raise ValueError(
                    f"update returned {scores!r}: expected {units.size} finite scores >= 0, one "
                    "for each unit"
                )
        code = getattr(
            self.design, "code", table_draws.SYSTEMATIC
        )  # also if a subclass draws itself
        rule = int(self.policy.refresh)  # Numba looks at an enumeration for 70 microseconds
        refresh_touched(
            self.nodes, 0, self.count, units.copy(), scores.copy(), units.size, rule, code
        )

    def mean_seen(self) -> float:
        """The mean of the known scores; 0 if there are none."""
        total, seen, _ = self.nodes[-tables.RECORD :]
        return float(total / seen) if seen > 0.0 else 0.0

    def replace(self, scores: np.ndarray) -> None:
        """Set every score."""
        self.nodes[: self.count] = scores
        take_scores(self.nodes, 0, self.count)

    def probabilities(self) -> np.ndarray:
        """p_k or p_n: the scores normalised and floored, before any cap; they sum to 1."""
        out = np.empty(self.count)
        tables.table_probabilities(self.nodes, 0, self.count, self.policy.floor, out)
        return out

    def inclusion(self, num: int) -> np.ndarray:
        """The inclusion probability of every unit in a draw of `num`, or its expected count."""
        out = num * self.probabilities()
        if not getattr(self.design, "repeats", False):
            tables.table_inclusion(self.nodes, 0, self.count, self.policy.floor, num, out)
        return out
