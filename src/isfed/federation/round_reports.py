"""What is known about one round: when answers came, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Timing(NamedTuple):
    """When the answers of a round came, one entry per agent selected."""

    seconds: np.ndarray  # NaN: no answer, or nobody measured
    late: np.ndarray  # after `enough` others had answered
    patient: bool  # the round waited for the late ones too

    @classmethod
    def unknown(cls, count: int) -> Timing:
        """Nobody looked at a clock, and everybody was waited for."""
        return cls(np.full(count, np.nan), np.zeros(count, bool), True)


@dataclass(frozen=True)
class RoundReport:
    """What happened in one round."""

    round_index: int
    drawn: int
    answered: int  # with a change that was accepted
    late: int  # of them, after the round could have closed
    refused_changes: int
    refused_scores: int
    limited_scores: int  # lowered to keep an agent within the cap
    clipped: int  # changes shortened for privacy
    excluded: int  # agents left out so far, in all
    step: float  # length of the cloud's step, without buffers
    left_out: float  # length of what `adjusted` would have added to a step of `drop`
    agents: list[int]  # those drawn ...
    seconds: list[float]  # ... and how long each took to answer; -1: it did not, or unknown

    def line(self) -> str:
        """For a log."""
        text = f"round {self.round_index + 1}: {self.answered} of {self.drawn} answered"
        moved = f"length of the step {self.step:.3g}"
        text += f", {moved}" if self.answered else ", nobody: the model stays as it is"
        for count, what in (
            (self.late, "of them late"),
            (self.refused_changes, "refused models"),
            (self.refused_scores, "refused scores"),
            (self.limited_scores, "scores lowered to the cap"),
            (self.clipped, "changes clipped"),
            (self.excluded, "agents left out so far"),
        ):
            text += f", {count} {what}" if count else ""
        slowest = max(self.seconds, default=-1.0)
        if slowest >= 0.0:
            agent = self.agents[self.seconds.index(slowest)]
            text += f"; slowest: agent {agent}, {slowest:.1f} s"
        return text
