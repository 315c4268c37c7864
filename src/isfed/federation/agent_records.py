"""What every agent has sent so far: how long its changes are, how often it was refused or slow.

A change is too long if it exceeds a multiple of the median over agents of the last length that
each of them had accepted. One that exceeds a smaller multiple, or what the spread of these lengths
allows if that is more, is shortened. Every agent counts once in median and spread, however often it
is drawn, so that less than half of them cannot move them beyond what the others send.
"""

from __future__ import annotations

import math

import numpy as np

from isfed.base.portable_arithmetic import log, row_norms

FEWEST = 3  # lengths that make a median worth using
# A length may exceed the median by so many standard deviations of the logarithm of all lengths, as
# the median deviation estimates it now or as a running average over about the last 20 rounds.
DEVIATIONS, NORMAL, RATE = 5.0, 1.4826, 0.05
LARGEST_BUFFER = 1e12  # of the change of a running variance: one that is larger could overflow


def trained_lengths(changes: np.ndarray, trained: int) -> np.ndarray:
    """(m,) of changes without their buffers; NaN if one is not finite, or a buffer could overflow.

    A running variance follows the scale of an agent's features, and says nothing about its step.

    >>> trained_lengths(np.array([[3.0, 4.0, 1e6]]), 2)
    array([5.])
    """
    lengths = row_norms(changes[:, :trained])  # not finite if one of the numbers is not
    lengths[~np.isfinite(lengths)] = np.nan
    if trained < changes.shape[1]:
        lengths[~(np.abs(changes[:, trained:]) <= LARGEST_BUFFER).all(axis=1)] = np.nan
    return lengths


def middle(values: np.ndarray) -> float:
    """The median; `np.median` takes ten times as long for so few numbers."""
    ordered, half = np.sort(values), values.size // 2
    return float(ordered[half] if values.size % 2 else 0.5 * (ordered[half - 1] + ordered[half]))


class AgentRecords:
    """Lengths, refusals and response times, per agent.

    >>> records = AgentRecords(4)
    >>> records.too_long(np.array([0, 1, 2, 3]), np.array([1.0, 1.2, 0.9, 5e4]), ratio=1000.0)
    array([False, False, False,  True])
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

    def _known(self, agents: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The last length of every agent, with these new ones; empty while there are too few.

        The new lengths count too, or the first round would have no median. An agent that has
        nothing to learn sends zero: zeros say nothing about the lengths of the others.
        """
        known = self.lengths.copy()
        known[agents] = lengths
        known = known[np.isfinite(known) & (known > 0.0)]
        return known if known.size >= FEWEST else known[:0]

    def too_long(self, agents: np.ndarray, lengths: np.ndarray, *, ratio: float) -> np.ndarray:
        """Which of these new lengths exceed `ratio` times the median over agents."""
        known = self._known(agents, lengths)
        if not known.size:
            return np.zeros(agents.size, bool)
        return lengths > ratio * middle(known)

    def limit(self, agents: np.ndarray, lengths: np.ndarray, *, medians: float) -> float:
        """The length to which longer changes are shortened."""
        known = self._known(agents, lengths)
        if not known.size or medians == np.inf:
            return np.inf
        median = middle(known)
        now = NORMAL * middle(np.abs(log(known / median)))
        self.spread[0] += RATE * (now - self.spread[0]) if self.spread[0] > 0.0 else now
        spread = max(now, self.spread[0])
        return median * max(medians, math.exp(min(DEVIATIONS * spread, 700.0)))

    def record(self, agents: np.ndarray, lengths: np.ndarray, accepted: np.ndarray) -> None:
        """The changes of a round: who sent one, how long it was, whether it was accepted."""
        self.lengths[agents[accepted]] = lengths[accepted]
        self.in_a_row[agents[accepted]] = 0
        self.in_a_row[agents[~accepted]] += 1
        self.refused[agents[~accepted]] += 1

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
