"""How the cloud treats agents that are absent, slow, wrong or hostile: one record of choices."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from isfed.base.argument_types import check_fields
from isfed.federation.privacy import Privacy
from isfed.federation.response_rates import LARGEST_ADJUSTMENT, Absences
from isfed.federation.score_bounds import ScoreRange


@dataclass(frozen=True, kw_only=True)
class Safety:
    """How the cloud treats agents that are absent, slow, wrong or hostile.

    absences: what an absence means: `Absences.DROP` counts a missing change as zero,
        `Absences.ADJUSTED` makes up for it by an estimate of how often the agent answers.
    largest_adjustment: the most that `Absences.ADJUSTED` multiplies a change by.
    enough: the share of the agents drawn whose answers may close a round.
    patience: the share of rounds that wait for all. An answer that came after the quorum counts
        1 / patience times there, which makes up for the rounds that did not wait for it.
    scores: the range of scores that is accepted.
    most_inclusion: the largest inclusion probability of any agent; None: one half, or three times
        L / K if that is more.
    largest_change: a longer change is refused whatever the others send: it could overflow.
    largest_ratio: a change longer than this many times the median agent's is refused. Buffers,
        such as running variances, do not count in the length of a change.
    most_refusals: after so many refused changes in a row an agent is left out; 0: never.
    privacy: clipping and noise in the cloud; None: neither.
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

    def __post_init__(self) -> None:
        check_fields(self)
        for name, low, high in (
            ("largest_adjustment", 1.0, np.inf),
            ("largest_ratio", 1.0, np.inf),
            ("largest_change", 0.0, np.inf),
            ("most_refusals", 0, np.inf),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name}={value} must be a number of at least {low:g}")
        for name in ("enough", "patience", "most_inclusion"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value <= 1.0:
                raise ValueError(f"{name}={value} must be above 0 and at most 1")
