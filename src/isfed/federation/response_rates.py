"""Agents that do not answer: how often each of them does, and what that does to its weight.

An agent k that was drawn answers with probability r_k. Two modes:

    drop      its change counts as zero. The steps then follow 1/K sum_k r_k grad P_k: they are
              shorter, and agents that answer less often count less.
    adjusted  a change is multiplied by an estimate of 1 / r_k, at most `LARGEST_ADJUSTMENT`. That
              undoes both, as long as an absence does not depend on what the agent would have sent.

The estimate of 1 / r_k must be unbiased itself, and 1 / (share of answers) is not. The number of
turns that it took to collect the last `WINDOW` answers, divided by `WINDOW`, is unbiased. Looking
back, that number has a negative binomial law with mean WINDOW / r_k, and it is independent of
whether the agent answers now. Before an agent has a history that long, the answers it lacks are
taken to have come as often as those of all agents together.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

from isfed.base.jit import compiled
from isfed.federation.messages import EVERY

WINDOW = 16
LARGEST_ADJUSTMENT = 5.0  # in simulations, and in a federation whose `Safety` says nothing else


class Absences(Enum):
    """What the absence of an agent means: nothing (`DROP`), or more weight later (`ADJUSTED`)."""

    DROP = "drop"
    ADJUSTED = "adjusted"


@compiled
def _record(turns, answers, answered_at, agents, answered):
    for i in range(agents.size):
        k = agents[i]
        if answered[i]:
            answered_at[k, answers[k] % WINDOW] = turns[k]
            answers[k] += 1
        turns[k] += 1


class Responses:
    """How often every agent answered when it was drawn.

    >>> responses = Responses(2)
    >>> for answered in (True, False, True, False):
    ...     responses.record(np.array([0]), np.array([answered]))
    >>> float(responses.rates()[0])
    0.5
    """

    def __init__(self, num_agents: int) -> None:
        self.turns = np.zeros(num_agents, np.int64)  # how often it was drawn
        self.answers = np.zeros(num_agents, np.int64)
        # The turns at which an agent gave its last answers, a ring of WINDOW places.
        self.answered_at = np.zeros((num_agents, WINDOW), np.int64)

    @classmethod
    def over(cls, kept: np.ndarray) -> Responses:
        """The same over an array that somebody else keeps, (K, 2 + WINDOW)."""
        responses = cls.__new__(cls)
        responses.turns, responses.answers = kept[:, 0], kept[:, 1]
        responses.answered_at = kept[:, 2:]
        return responses

    def kept(self) -> np.ndarray:
        """(K, 2 + WINDOW) all of it, as `over` takes it."""
        return np.column_stack([self.turns, self.answers, self.answered_at])

    def inverse_rates(self, agents: np.ndarray) -> np.ndarray:
        """The estimates of 1 / r_k from the turns before this one."""
        turns, answers = self.turns[agents], self.answers[agents]
        # The place that the next answer will take holds the oldest: the WINDOW-th looking back.
        oldest = self.answered_at[agents, answers % WINDOW]
        lacking = np.maximum(WINDOW - answers, 0)
        needed = np.where(lacking > 0, turns + lacking * self._pooled(), turns - oldest)
        return needed / WINDOW

    def adjustments(self, agents: np.ndarray, *, most: float = LARGEST_ADJUSTMENT) -> np.ndarray:
        """What `ADJUSTED` multiplies the changes by: the estimates, but no more than `most`."""
        return np.minimum(self.inverse_rates(agents), most)

    def _pooled(self) -> float:
        """1 / r over all agents.

        Of n turns with S answers, (n + 1) / (S + 1) has the mean (1 - (1 - r)^(n + 1)) / r, and is
        finite when nobody ever answered.
        """
        return float((self.turns.sum() + 1) / (self.answers.sum() + 1))

    def record(self, agents: np.ndarray, answered: np.ndarray) -> None:
        """One round: who was drawn (each once), and who of them answered."""
        _record(self.turns, self.answers, self.answered_at, agents, answered)

    def record_round(self, drawn: np.ndarray, updates: Any) -> None:
        """One round from what came back, if it waited for everybody that was asked."""
        if updates.timing is not None and not updates.timing.patient:
            return  # a missing one might have answered
        answered = np.ones(drawn.size, bool)
        if updates.place is not EVERY:
            answered[:] = False
            answered[updates.place] = True
        if updates.asked is not None:
            drawn, answered = drawn[updates.asked], answered[updates.asked]
        self.record(drawn, answered)

    def rates(self) -> np.ndarray:
        """The share of turns answered; an agent never drawn counts as the mean of the others."""
        pooled = 1.0 / self._pooled()
        return np.where(self.turns > 0, self.answers / np.maximum(self.turns, 1), pooled)

    def bias_report(self, *, largest_adjustment: float | None = None) -> str:
        """What the rates mean for `drop`, or for `adjusted` up to so large a factor."""
        drawn = self.turns > 0
        if not drawn.any():
            return "no round waited for all agents, so their response rates are not known"
        if (self.answers == self.turns).all():
            return "every agent answered in every round that waited for all: no bias is seen"
        rates = self.rates()
        low, high = rates[drawn].min(), rates[drawn].max()
        counts = (  # other rounds are not counted: they leave out who is late
            f"in rounds that waited for all, agents answered {self.answers.sum()} of "
            f"{self.turns.sum()} times"
        )
        if largest_adjustment is not None:
            rare = int((rates[drawn] * largest_adjustment < 1.0).sum())
            return f"{counts}; adjusted weights made up for it" + (
                f", except for {rare} agents that answered less than once in "
                f"{largest_adjustment:g} turns: they count less than 1"
                if rare
                else ""
            )
        return (
            f"{counts}; dropping makes "
            f"steps {rates.mean():.2f} times as long and minimises a risk in which agents count "
            f"{low:.2f} to {high:.2f} instead of 1"
        )

    def state(self) -> dict[str, np.ndarray]:
        return {"turns": self.turns, "answers": self.answers, "answered_at": self.answered_at}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        for name in self.state():
            setattr(self, name, state[name].copy())
