"""Sampling what is new: agents remember their gradients, and only innovations are estimated.

Agent k keeps c_k, a memory of its own gradient, and the cloud keeps c, the mean of all c_k. A turn
shows g_k, the mean gradient of its steps, and the innovation v_k = g_k - c_k. The cloud steps by

    w <- w - mu (c + 1/L sum over those heard of v_k / (K p_k))

which is Horvitz-Thompson on the innovation: unbiased whatever the c_k are, and exact where they are
right. Then c_k moves by a gain times v_k. docs/variance.md has the derivations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from isfed.base.argument_checks import check_fields, is_number, shown
from isfed.base.jit import compiled, jit_inline
from isfed.base.portable_arithmetic import weighted_sum
from isfed.sampling.designs import Design, WithReplacement
from isfed.sampling.policies import Policy, Score

NONE, DIFFERENCE, DRIFT = 0, 1, 2  # the kinds, as compiled code knows them
KINDS = {"difference": DIFFERENCE, "drift": DRIFT}
ADAPTIVE = -1.0
# The adaptive gain is a ratio over about the last hundred pairs of turns, and starts as if five
# pairs had shown 1/2. Forgetting 3 times slower or 10 times faster changes no result of the study.
FORGET, PRIOR_PAIRS, PRIOR_GAIN = 0.01, 5.0, 0.5
# The columns of `Reference.book`, the statistics of an agent: the number of turns heard, the gain
# and |v|^2 of its last turn, the averages of |v|^2 and of S + |v|^2 - |g|^2, and the turns missed
# in a row.
TURNS, GAIN, SQUARE, MEAN_SQUARE, MEAN_NOISE, MISSED, BOOK = 0, 1, 2, 3, 4, 5, 6
# The entries of `Reference.pool`, over all agents: sums over pairs of consecutive turns of
# <g' - c, g - c> and of |g - c|^2, both over (K p_k)^2, the number of pairs, the number of agents
# heard, and the largest |v|^2 by which a c_k moves in full; 0 for no limit.
AGREEMENT, LENGTH, PAIRS, HEARD, LIMIT, POOL = 0, 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Correction:
    """What agents remember of their gradients, and what is done with it.

    Args:
        kind: "difference" estimates only what is new since an agent's last turns (FedVARP is its
            uniform case); "drift" also steers the local steps by c - c_k, so that agents with
            several local steps do not run towards their own minimisers (SCAFFOLD's local step).
        gain: how far c_k moves towards what a turn shows, in [0, 1], where 0 remembers nothing;
            "adaptive" learns it, from how well the innovations of two turns in a row agree.
        unseen: what c_k is before the first turn of agent k: the "mean" over the agents that have
            had one, or "zero".

    Examples:
        >>> Correction("drift").gain
        'adaptive'
    """

    kind: Literal["difference", "drift"]
    gain: float | Literal["adaptive"] = "adaptive"
    unseen: Literal["mean", "zero"] = "mean"

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise ValueError(
                f"correction {shown(self.kind)} must be of kind 'difference' or 'drift'"
            )
        check_fields(self)
        gain = self.gain
        if gain != "adaptive" and not (is_number(gain) and 0.0 <= gain <= 1.0):
            raise ValueError(f"gain={gain!r} must be between 0 and 1, or 'adaptive'")

    @property
    def adapts(self) -> bool:
        """Whether the gain is learned."""
        return self.gain == "adaptive"


class CorrectionRule(NamedTuple):
    """A correction and the score that goes with it, as numbers."""

    kind: int
    gain: float  # negative: adaptive
    from_mean: bool  # an agent not heard yet counts as the mean of those heard
    scored: bool  # whether the scores of the agents are learned from the innovations
    second_moment: bool  # the score is the root of the averaged |v|^2, and no more
    rate: float  # of the averages in the score


def make_rule(correction: Correction | None, agents: Policy) -> CorrectionRule:
    """A correction, or none, under a policy for agents."""
    if correction is None:
        return CorrectionRule(NONE, 0.0, False, False, False, 1.0)
    return CorrectionRule(
        kind=KINDS[correction.kind],
        gain=ADAPTIVE if correction.adapts else float(correction.gain),
        from_mean=correction.unseen == "mean",
        scored=agents.learns,
        second_moment=agents.score == Score.SECOND_MOMENT,
        rate=float(agents.rate),
    )


def extra_messages(rule: CorrectionRule, turns: int) -> dict[str, int]:
    """What turns cost beyond those of the plain method, by entry of the ledger.

    As if every agent kept its own c_k: down goes c, with the round and the gain of the agent's last
    turn that was accepted. Up goes <v', v> for an adaptive gain.
    """
    if rule.kind == NONE:
        return {}
    up = turns if rule.gain < 0.0 else 0
    return {"models_down": turns, "scalars_down": 2 * turns, "scalars_up": up}


def noise_share(sizes: Any, batch: Any, steps: Any, design: Design) -> Any:
    """What a turn leaves of the variance of one example: (1 - B_k / N_k) / (E_k B_k).

    Args:
        sizes, batch, steps: N_k, B_k and E_k of an agent, or of several as arrays.
        design: how the examples are drawn; with replacement there is no factor 1 - B_k / N_k.

    >>> from isfed import Deville
    >>> noise_share(10, 5, 2, Deville()), noise_share(10, 5, 2, WithReplacement())
    (0.05, 0.1)
    """
    left = 1.0 if isinstance(design, WithReplacement) else 1.0 - batch / sizes
    return left / (steps * batch)


class Reference(NamedTuple):
    """What agents and cloud remember, for one repetition."""

    centre: np.ndarray  # (M,) c
    own: np.ndarray  # (K, M) c_k
    news: np.ndarray  # (K, M) the innovation v_k of every last turn; empty unless the gain adapts
    book: np.ndarray  # (K, BOOK) statistics of every agent
    pool: np.ndarray  # (POOL,) and of all agents together


def make_reference(rule: CorrectionRule, num_agents: int, num_params: int) -> Reference:
    """Nothing remembered yet."""
    agents = num_agents if rule.kind != NONE else 0
    return Reference(
        np.zeros(num_params),
        np.zeros((agents, num_params)),
        np.zeros((agents if rule.gain < 0.0 else 0, num_params)),
        np.zeros((agents, BOOK)),
        np.zeros(POOL),
    )


@jit_inline
def _starts_at_mean(rule, reference, agent):
    """Whether c_k is still the mean of the others."""
    return rule.from_mean and reference.book[agent, TURNS] == 0.0


@jit_inline
def write_correction(rule, reference, agent, out):
    """c - c_k, which is added to every gradient of a turn."""
    at_mean = _starts_at_mean(rule, reference, agent)
    for j in range(out.size):
        out[j] = 0.0 if at_mean else reference.centre[j] - reference.own[agent, j]


@jit_inline
def write_innovation(rule, reference, agent, reach, change):
    """v_k in the place of the change of a turn, whose whole step was `reach`."""
    known = rule.kind == DIFFERENCE and not _starts_at_mean(rule, reference, agent)
    for j in range(change.size):
        pull = -change[j] / reach
        if known:
            pull -= reference.own[agent, j]
        elif rule.kind != NONE:  # with "drift" the steps were corrected by c - c_k already
            pull -= reference.centre[j]
        change[j] = pull


@jit_inline
def pooled_gain(pool):
    """The regression coefficient of an agent's next innovation on its last one, over all agents."""
    ratio = pool[AGREEMENT] / pool[LENGTH] if pool[LENGTH] > 0.0 else PRIOR_GAIN
    gain = (pool[PAIRS] * ratio + PRIOR_PAIRS * PRIOR_GAIN) / (pool[PAIRS] + PRIOR_PAIRS)
    return min(max(gain, 0.0), 1.0)


@jit_inline
def average_rate(rule, turns):
    """Of the averages in a score after some turns: their mean at first, then a moving average.

    A moving average from the first turn on would remember the gradients far from w^o for long.
    """
    return max(rule.rate, 1.0 / (turns + 1.0))


@jit_inline
def take_gain(rule, stats, pool, agent, square, agreement, weight):
    """The gain with which c_k moves, from |v|^2 of a turn and its <v, v of the turn before>.

    `weight` is 1 / (K p_k): sums over those heard with weights 1 / (K p_k)^2 estimate the sum over
    all agents of |v_k|^2 / p_k, the variance that the gain is to make small.
    """
    turns = stats[agent, TURNS]
    if turns > 0.0 and rule.gain < 0.0:  # from the c_k of the turn before, both of them
        agreement += stats[agent, GAIN] * stats[agent, SQUARE]
        counts = weight * weight
        pool[AGREEMENT] = (1.0 - FORGET) * pool[AGREEMENT] + counts * agreement
        pool[LENGTH] = (1.0 - FORGET) * pool[LENGTH] + counts * stats[agent, SQUARE]
        pool[PAIRS] = (1.0 - FORGET) * pool[PAIRS] + 1.0
    gain = rule.gain if rule.gain >= 0.0 else pooled_gain(pool)
    if 0.0 < pool[LIMIT] < square:  # c_k moves no further than by an innovation of that length
        gain *= math.sqrt(pool[LIMIT] / square)
    pool[HEARD] += 0.0 if turns > 0.0 else 1.0
    stats[agent, TURNS], stats[agent, GAIN], stats[agent, SQUARE] = turns + 1.0, gain, square
    stats[agent, MEAN_SQUARE] += average_rate(rule, turns) * (square - stats[agent, MEAN_SQUARE])
    return gain


@jit_inline
def innovation_score(rule, stats, agent, noise):
    """E|v|^2 is noise plus what c_k does not know yet, and of |v|^2 the share `gain` is that."""
    if not rule.scored:
        return 0.0
    if rule.second_moment:
        return math.sqrt(stats[agent, MEAN_SQUARE])
    return math.sqrt(noise + stats[agent, GAIN] * stats[agent, MEAN_SQUARE])


@jit_inline
def learn(rule, reference, agent, innovation, weight, spread, noise_share, move):
    """Move c_k by the innovation of a turn, add that to `move`, and return the agent's score.

    `weight` is that of the innovation in the cloud's step, `spread` the agent's S_k = 1/N^2 sum_n
    |grad_n|^2 / p_n in this turn, and `noise_share` what a turn leaves of the variance of a single
    example: (1 - B_k / N_k) / (E_k B_k).
    """
    at_mean = _starts_at_mean(rule, reference, agent)
    stats, own = reference.book, reference.own
    rate = average_rate(rule, stats[agent, TURNS])
    square, length, agreement = 0.0, 0.0, 0.0
    for j in range(innovation.size):
        gradient = innovation[j] + (reference.centre[j] if at_mean else own[agent, j])
        square += innovation[j] * innovation[j]
        length += gradient * gradient
        if rule.gain < 0.0:
            agreement += innovation[j] * reference.news[agent, j]
            reference.news[agent, j] = innovation[j]
    gain = take_gain(rule, stats, reference.pool, agent, square, agreement, weight)
    for j in range(innovation.size):
        before = reference.centre[j] if at_mean else own[agent, j]
        own[agent, j] = before + gain * innovation[j]
        move[j] += gain * innovation[j]
    stats[agent, MEAN_NOISE] += rate * (spread + square - length - stats[agent, MEAN_NOISE])
    noise = noise_share * max(stats[agent, MEAN_NOISE], 0.0)
    return innovation_score(rule, stats, agent, noise)


@jit_inline
def step_and_move(rule, reference, step_size, num_active, heard, params, total, move):
    """The cloud's step, and the new mean of all c_k; `total` is the weighted sum of innovations.

    `heard` scales c: 1, or the share of the L agents that answered if nothing makes up for the
    others. With all of c and only some innovations, the errors of c would remain in the step.
    """
    agents = reference.book.shape[0]
    if rule.from_mean:
        agents = reference.pool[HEARD]
    for j in range(params.size):
        # Divided by L, never by the sum of the weights: that would bias the mean.
        params[j] -= step_size * (heard * reference.centre[j] + total[j] / num_active)
        if agents > 0:
            reference.centre[j] += move[j] / agents


def forget_variates(rule: CorrectionRule, reference: Reference, agents: np.ndarray) -> None:
    """Take the c_k of some agents out of c; they count as agents that were never heard.

    c is summed anew over those that are left, so that nothing of the others remains in it.
    """
    agents = agents[reference.book[agents, TURNS] > 0.0]
    if not agents.size:
        return
    reference.own[agents] = 0.0
    reference.book[agents] = 0.0
    if reference.news.size:
        reference.news[agents] = 0.0
    heard = reference.book[:, TURNS] > 0.0
    reference.pool[HEARD] = heard.sum()
    count = max(heard.sum(), 1) if rule.from_mean else heard.size
    reference.centre[:] = weighted_sum(heard / count, reference.own)


@compiled
def corrections_of(rule, reference, agents):
    """(n, M) c - c_k of every agent named."""
    out = np.empty((agents.size, reference.centre.size))
    for i in range(agents.size):
        write_correction(rule, reference, agents[i], out[i])
    return out


@compiled
def take_innovations(rule, reference, agents, reach, changes):
    """(n, M) v_k of every agent named, in the place of its change."""
    for i in range(agents.size):
        write_innovation(rule, reference, agents[i], reach[i], changes[i])


@compiled
def absorb(
    rule, reference, step_size, num_active, heard, params, agents, weight, innovation, reports
):
    """The cloud's step from the innovations of a round, and what is learned from it.

    `heard` scales c as in `step_and_move`, `weight` is times / (K p_k), `reports` are (scores,
    noise_share): spreads come in and scores go out. Writes into the model and into the reference.
    """
    scores, noise_share = reports
    total, move = np.zeros(params.size), np.zeros(params.size)
    for i in range(agents.size):
        for j in range(params.size):
            total[j] += weight[i] * innovation[i, j]
        if rule.kind != NONE:
            agent = agents[i]
            scores[i] = learn(
                rule, reference, agent, innovation[i], weight[i], scores[i], noise_share[i], move
            )
    step_and_move(rule, reference, step_size, num_active, heard, params, total, move)
