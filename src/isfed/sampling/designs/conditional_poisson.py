"""Conditional Poisson sampling: of all designs with given inclusion the one of most entropy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from isfed.base.random_streams import Stream, as_stream
from isfed.sampling.designs.inclusion import check_inclusion
from isfed.sampling.designs.joints import conditional_joint, with_certain

MOST_NUMBERS = 50_000_000  # of a table of units times sizes: 400 MB
ACCURACY = 1e-11  # relative, of inclusion and of what it lacks to 1
MOST_ROUNDS = 500


@dataclass(frozen=True)
class ConditionalPoisson:
    """Conditional Poisson sampling, the design of maximum entropy.

    Every unit is drawn independently, and the draw counts if it has n units. The chances of the
    independent draws are found such that the inclusion probabilities are those asked for.

    >>> ConditionalPoisson().draw([0.5, 0.5, 1.0], rng=0).size
    2
    """

    fixed_size: ClassVar[bool] = True
    guarantee: ClassVar[str] = (
        "exact inclusion and joint inclusion probabilities, n distinct units, never rejects, the "
        "most random of all such designs; O(N n) for new probabilities, then O(N) for every draw"
    )

    def draw(self, inclusion: ArrayLike, rng: Stream | np.random.Generator | int) -> np.ndarray:
        """The units drawn, in order."""
        values, num = check_inclusion(inclusion)
        rest = np.flatnonzero((values > 0.0) & (values < 1.0))
        left = num - int(np.count_nonzero(values == 1.0))
        taken = values == 1.0
        if rest.size:
            chance, after = _prepared(values[rest].tobytes(), left)
            uniforms = as_stream(rng).uniforms(rest.size)
            for unit in range(rest.size):
                if left == 0:
                    break
                share = chance[unit] * after[unit + 1, left - 1]
                if uniforms[unit] * after[unit, left] < share:
                    taken[rest[unit]] = True
                    left -= 1
        return np.flatnonzero(taken)

    def joint(self, inclusion: ArrayLike) -> np.ndarray:
        """Exact joint inclusion probabilities."""
        values, num = check_inclusion(inclusion)
        return with_certain(values, num, rejective_joint)


def rejective_joint(inclusion: np.ndarray, num: int) -> np.ndarray:
    """Joint inclusion probabilities of maximum entropy, for inclusion between 0 and 1."""
    return conditional_joint(_prepared(inclusion.tobytes(), num)[0], num)


@lru_cache(maxsize=4)
def _prepared(inclusion: bytes, num: int) -> tuple[np.ndarray, np.ndarray]:
    """The chances of independent draws, and the table of sizes of what comes after each unit."""
    wanted = np.frombuffer(inclusion)
    if wanted.size * (num + 1) > MOST_NUMBERS:
        raise ValueError(
            f"conditional Poisson draws of {num} of {wanted.size} units need a table of "
            f"{wanted.size * (num + 1)} numbers (at most {MOST_NUMBERS}); use Deville()"
        )
    odds = wanted / (1.0 - wanted)
    target = odds.copy()
    # The largest share of the variance bounds how far a step leads beyond its aim.
    share = min(0.5, float((wanted * (1.0 - wanted)).max() / (wanted * (1.0 - wanted)).sum()))
    length = (2.0 - 2.0 * share) / (2.0 - share)
    error = np.inf
    for _ in range(MOST_ROUNDS):
        chance = odds / (1.0 + odds)
        after = _sizes(chance, num)
        before = _sizes(chance[::-1], num)[::-1]
        # Sums over how many of the n (or, without the unit, of the other n) come before it.
        out = (before[:-1] * after[1:, ::-1]).sum(axis=1)
        within = (before[:-1, :-1] * after[1:, -2::-1]).sum(axis=1)
        ratio = target * out / (odds * within)
        error, before_it = float(np.abs(ratio - 1.0).max()), error
        if error <= ACCURACY and error >= before_it / 2.0:  # to the last digits
            break
        odds = odds * (1.0 + length * (ratio - 1.0))
    else:
        raise RuntimeError(
            f"the chances of a conditional Poisson draw were not found in {MOST_ROUNDS} rounds; "
            "use Brewer() or Deville(), which need none"
        )
    return chance, after


def _sizes(chance: np.ndarray, num: int) -> np.ndarray:
    """(N + 1, num + 1) the probability that `size` of the units from `unit` on are drawn."""
    sizes = np.zeros((chance.size + 1, num + 1))
    sizes[-1, 0] = 1.0
    for unit in range(chance.size - 1, -1, -1):
        sizes[unit] = (1.0 - chance[unit]) * sizes[unit + 1]
        sizes[unit, 1:] += chance[unit] * sizes[unit + 1, :-1]
    return sizes
