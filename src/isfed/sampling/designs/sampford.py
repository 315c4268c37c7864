"""Sampford's design: fixed size, exact inclusion probabilities, known joint ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from isfed.base.interpret_first import Light
from isfed.base.jit import compiled
from isfed.base.random_streams import Stream, as_stream, uniform
from isfed.base.value_checks import check_whole
from isfed.sampling.designs.inclusion import check_inclusion
from isfed.sampling.designs.joints import sampford_joint, with_certain


@compiled
def _draw_sampford(first, others, num, most_tries, state):
    """One unit by `first`, the others with replacement by `others`, until all are distinct."""
    units = np.empty(num, np.int64)
    taken = np.full(first.size, -1)
    for attempt in range(most_tries):
        draw = 0
        while draw < num:
            ends = first if draw == 0 else others
            unit = np.searchsorted(ends, uniform(state) * ends[-1], side="right")
            if taken[unit] == attempt:
                break
            taken[unit] = attempt
            units[draw] = unit
            draw += 1
        if draw == num:
            return units
    return units[:0]


# A draw is tried until it succeeds: how often is not known, and a hundred times is not rare.
_draw_light = Light(_draw_sampford, lambda first, others, num, *_: 1000 * num)


@dataclass(frozen=True)
class Sampford:
    """Sampford's rejective design, for when joint inclusion probabilities are needed.

    It draws with replacement until all units differ.

    most_tries: after so many tries it gives up; with many large inclusion probabilities almost
        every try fails.
    """

    most_tries: int = 1_000_000
    fixed_size: ClassVar[bool] = True
    guarantee: ClassVar[str] = (
        "exact inclusion and joint inclusion probabilities, n distinct units; rejects until all "
        "differ, which can take too long when many inclusion probabilities are large"
    )

    def __post_init__(self) -> None:
        check_whole(self.most_tries, name="most_tries", least=1)

    def draw(self, inclusion: ArrayLike, rng: Stream | np.random.Generator | int) -> np.ndarray:
        """The units drawn, in order."""
        values, num = check_inclusion(inclusion)
        certain = np.flatnonzero(values == 1.0)
        rest = np.flatnonzero((values > 0.0) & (values < 1.0))
        if num == certain.size:
            return certain
        chance = values[rest]
        drawn = _draw_light(
            np.cumsum(chance),
            np.cumsum(chance / (1.0 - chance)),
            num - certain.size,
            self.most_tries,
            as_stream(rng).state,
        )
        if drawn.size == 0:
            raise RuntimeError(
                f"Sampford's design rejected {self.most_tries} draws of {num} of {values.size} "
                "units; use Deville() or HartleyRao(), which never reject"
            )
        return np.sort(np.concatenate([certain, rest[drawn]]))

    def joint(self, inclusion: ArrayLike) -> np.ndarray:
        """Exact joint inclusion probabilities (Sampford 1967)."""
        values, num = check_inclusion(inclusion)
        return with_certain(values, num, sampford_joint)
