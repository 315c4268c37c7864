"""What every agent has sent so far: how long its changes are, how often it was refused or slow.

A change is too long if it exceeds a multiple of the median over agents of the last length that
each of them had accepted. One that exceeds a smaller multiple, or what the spread of these lengths
allows if that is more, is shortened. Every agent counts once in median and spread, however often it
is drawn, so that less than half of them cannot move them beyond what the others send.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from isfed.base.jit import compiled, jit_call
from isfed.base.portable_arithmetic import square

FEWEST = 3  # lengths that make a median worth using
# A length may exceed the median by so many standard deviations of the logarithm of all lengths, as
# the median deviation estimates it now or as a running average over about the last 20 rounds.
DEVIATIONS, NORMAL, RATE = 5.0, 1.4826, 0.05
LARGEST_BUFFER = 1e12  # of the change of a running variance: one that is larger could overflow
NO_STEER = np.empty((0, 0))


def trained_lengths(changes: np.ndarray, trained: int, steer: np.ndarray = NO_STEER) -> np.ndarray:
    """(m,) of changes without their buffers; NaN if one is not finite, or a buffer could overflow.

    A running variance follows the scale of an agent's features, and says nothing about its step.

    Args:
        changes: (m, M) what agents sent.
        trained: how many of the entries are trained; they come first.
        steer: (m, trained) what is added to them first, or nothing.

    >>> trained_lengths(np.array([[3.0, 4.0, 1e6]]), 2)
    array([5.])
    """
    out = np.empty(len(changes))
    _lengths(np.ascontiguousarray(changes, np.float64), trained, steer, out)
    return out


@compiled
def _lengths(changes, trained, steer, out):
    steered = np.empty((1, trained if steer.size else 0))
    for i in range(out.size):
        row = np.uint64(i)
        if steer.size:
            for j in range(trained):
                steered[0, j] = changes[row, j] + steer[row, j]
            total = square(steered, np.uint64(0), trained)
        else:
            total = square(changes, row, trained)
        for j in range(trained, changes.shape[1]):
            if not abs(changes[row, j]) <= LARGEST_BUFFER:
                total = math.nan
        out[i] = math.sqrt(total) if total < math.inf else math.nan


@jit_call
def _middle(values, count):
    """The median of the first `count` numbers, whose order it changes; by Hoare's selection."""
    half, low, high = count // 2, 0, count - 1
    while low < high:
        pivot, i, j = values[half], low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while pivot < values[j]:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        low, high = i if j < half else low, j if half < i else high
    if count % 2:
        return values[half]
    below = values[0]
    for i in range(1, half):
        below = max(below, values[i])
    return 0.5 * (below + values[half])


@jit_call
def _known(lengths, values):
    """Write the lengths that say something to `values`; how many there are.

    An agent that has nothing to learn sends zero: zeros say nothing about the lengths of the
    others.
    """
    count = 0
    for k in range(lengths.size):
        if 0.0 < lengths[k] < math.inf:
            values[count] = lengths[k]
            count += 1
    return count


@compiled
def _judge(agents, whole, lengths, bounds, records, good):
    """What `AgentRecords.judge` does; returns the limit, and how many are refused, long and due."""
    largest, ratio, medians, most_refusals = bounds
    last, spread, refused, in_a_row, excluded = records
    # The new lengths count too, or the first round would have no median.
    now, values = last.copy(), np.empty(last.size)
    for i in range(agents.size):
        good[i] = whole[i] <= largest  # NaN is refused too
        if good[i]:
            now[agents[i]] = lengths[i]
    count = _known(now, values)
    median = _middle(values, count) if count >= FEWEST else math.inf
    longer = 0
    for i in range(agents.size):
        if good[i] and lengths[i] > ratio * median:
            good[i] = False
            now[agents[i]] = last[agents[i]]
            longer += 1
    if longer > 0:
        count = _known(now, values)
        median = _middle(values, count) if count >= FEWEST else math.inf
    limit = math.inf
    if count >= FEWEST and medians < math.inf:
        for i in range(count):
            values[i] = abs(math.log(values[i] / median))
        deviation = NORMAL * _middle(values, count)
        spread[0] += RATE * (deviation - spread[0]) if spread[0] > 0.0 else deviation
        allowed = math.exp(min(DEVIATIONS * max(deviation, spread[0]), 700.0))
        limit = median * max(medians, allowed)
    bad, long, due = 0, 0, 0
    for i in range(agents.size):
        k = agents[i]
        if good[i]:
            long += lengths[i] > limit
            last[k] = min(lengths[i], limit)  # no longer than that it counts in the median
            in_a_row[k] = 0
        else:
            bad += 1
            in_a_row[k] += 1
            refused[k] += 1
    for k in range(excluded.size):
        due += most_refusals > 0 and in_a_row[k] >= most_refusals and not excluded[k]
    return limit, bad, long, due


class Judged(NamedTuple):
    """What the lengths of a round's changes say."""

    good: np.ndarray  # (m,) which changes can be used
    limit: float  # to which longer ones are shortened
    refused: int
    long: int  # changes above the limit, of those that can be used
    due: int  # agents that have been refused too often in a row


class AgentRecords:
    """Lengths, refusals and response times, per agent.

    >>> records = AgentRecords(4)
    >>> sent = np.array([1.0, 1.2, 0.9, 5e4])
    >>> records.judge(np.arange(4), sent, bounds=(1e12, 1000.0, 10.0, 3)).good
    array([ True,  True,  True, False])
    """

    def __init__(self, num_agents: int) -> None:
        self.lengths = np.full(num_agents, -1.0)  # of the last change accepted; -1: none yet
        self.spread = np.zeros(1)  # of the logarithms of all lengths, as a running average
        self.refused = np.zeros(num_agents, np.int64)  # changes and scores, in all
        self.in_a_row = np.zeros(num_agents, np.int64)  # changes refused since one was accepted
        self.excluded = np.zeros(num_agents, bool)
        self.timed = np.zeros(num_agents, np.int64)  # answers with a known response time
        self.seconds = np.zeros(num_agents)  # the sum of those times ...
        self.slowest = np.zeros(num_agents)  # ... and the longest of them

    def judge(
        self,
        agents: np.ndarray,
        lengths: np.ndarray,
        unweighted: np.ndarray | None = None,
        *,
        bounds: tuple[float, float, float, int],
    ) -> Judged:
        """Judge the changes of a round by their lengths, and remember these.

        Args:
            agents: (m,) who sent one, each once.
            lengths: (m,) how long it is; NaN if it cannot be used.
            unweighted: (m,) what is compared with others' lengths; None for the lengths.
            bounds: the largest length, the largest multiple of the median over agents, the multiple
                to which longer changes are shortened unless the spread of all allows more, and the
                most refusals in a row (0: any number).
        """
        good = np.empty(agents.size, bool)
        records = self.lengths, self.spread, self.refused, self.in_a_row, self.excluded
        compared = lengths if unweighted is None else unweighted
        return Judged(good, *_judge(agents, lengths, compared, bounds, records, good))

    def exclude(self, most: int) -> np.ndarray:
        """The agents that have now had `most` changes refused in a row; they are left out."""
        new = ~self.excluded & (self.in_a_row >= most) if most > 0 else np.zeros(0, bool)
        self.excluded[np.flatnonzero(new)] = True
        return np.flatnonzero(new)

    def readmit(self, agents: np.ndarray) -> None:
        """Take agents back whose fault has been mended."""
        self.excluded[agents] = False
        self.in_a_row[agents] = 0

    def clock(self, agents: np.ndarray, seconds: np.ndarray) -> None:
        """How long answers took; NaN where nobody measured."""
        known = np.isfinite(seconds)
        here, taken = agents[known], seconds[known]
        self.timed[here] += 1
        self.seconds[here] += taken
        self.slowest[here] = np.maximum(self.slowest[here], taken)

    def mean_seconds(self) -> np.ndarray:
        """Per agent; NaN for one that never answered."""
        return np.where(self.timed > 0, self.seconds / np.maximum(self.timed, 1), np.nan)

    def lines(self, most: int = 5) -> list[str]:
        """For a log: the slowest agents, those refused most often, and those left out."""
        mean, sentences = self.mean_seconds(), []
        slow = [
            k for k in np.argsort(-np.nan_to_num(mean, nan=-1.0), kind="stable") if self.timed[k]
        ][:most]
        if slow:
            each = ", ".join(f"{k}: {mean[k]:.1f} ({self.slowest[k]:.1f})" for k in slow)
            sentences.append(f"slowest agents, mean (longest) seconds to answer: {each}")
        bad = [k for k in np.argsort(-self.refused, kind="stable") if self.refused[k]][:most]
        if bad:
            each = ", ".join(f"{k}: {self.refused[k]}" for k in bad)
            sentences.append(f"refused most often: {each}")
        if self.excluded.any():
            each = ", ".join(str(k) for k in np.flatnonzero(self.excluded))
            sentences.append(f"left out: {each}; give readmit=[...] when they are mended")
        return sentences

    def state(self) -> dict[str, np.ndarray]:
        return dict(vars(self))

    def restore(self, state: dict[str, np.ndarray]) -> None:
        for name in vars(self):
            setattr(self, name, state[name].copy())
