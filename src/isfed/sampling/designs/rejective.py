"""Rejective designs, conditional Poisson and Sampford: draws count if they have n distinct units.

Joint inclusion probabilities come from a discrete Fourier transform. Take every unit independently
with its chance p, and let f(z) = prod_k (1 - p_k + p_k z). The coefficient of z^n belongs to the
sets of n units. To demand that unit i is in the set, replace its factor by p_i z, which is a
multiplication by g_i = p_i z / (1 - p_i + p_i z). On the unit circle the coefficient is a mean, so
all pairs together are one product of matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from isfed.base.argument_checks import check_whole
from isfed.base.interpret_first import InterpretFirst
from isfed.base.jit import compiled
from isfed.base.random_streams import Stream, uniform
from isfed.sampling.designs.design_protocol import FixedSize

MOST_NUMBERS = 50_000_000  # of a table of units times sizes: 400 MB
ACCURACY = 1e-11  # relative, of inclusion and of what it lacks to 1
MOST_ROUNDS = 500
NEGLIGIBLE = 1e-40  # a frequency of this weight changes no digit


@dataclass(frozen=True)
class ConditionalPoisson(FixedSize):
    """Conditional Poisson sampling, the design of maximum entropy.

    Every unit is drawn independently, and the draw counts if it has n units. The chances of the
    independent draws are found such that the inclusion probabilities are those asked for.

    Examples:
        >>> ConditionalPoisson().draw([0.5, 0.5, 1.0], rng=0).size
        2
    """

    guarantee: ClassVar[str] = (
        "exact inclusion and joint inclusion probabilities, n distinct units, never rejects, the "
        "most random of all such designs; O(N n) for new probabilities, then O(N) for every draw"
    )

    def _draw_open(self, inclusion: np.ndarray, num: int, stream: Stream) -> list[int]:
        chance, after = _prepared(inclusion.tobytes(), num)
        drawn: list[int] = []
        for unit, share in enumerate(stream.uniforms(inclusion.size)):
            left = num - len(drawn)
            if left == 0:
                break
            if share * after[unit, left] < chance[unit] * after[unit + 1, left - 1]:
                drawn.append(unit)
        return drawn

    def _open_joint(self, inclusion: np.ndarray, num: int) -> np.ndarray:
        return rejective_joint(inclusion, num)


def rejective_joint(inclusion: np.ndarray, num: int) -> np.ndarray:
    """Joint inclusion probabilities of maximum entropy, for inclusion between 0 and 1."""
    factors, weights = _spectrum(_prepared(inclusion.tobytes(), num)[0], num)
    return np.real((factors * weights) @ factors.T) / np.real(weights.sum())


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
            return chance, after
        odds = odds * (1.0 + length * (ratio - 1.0))
    raise RuntimeError(
        f"the chances of a conditional Poisson draw were not found in {MOST_ROUNDS} rounds; "
        "use Brewer() or Deville(), which need none"
    )


def _sizes(chance: np.ndarray, num: int) -> np.ndarray:
    """(N + 1, num + 1) the probability that `size` of the units from `unit` on are drawn."""
    sizes = np.zeros((chance.size + 1, num + 1))
    sizes[-1, 0] = 1.0
    for unit in range(chance.size - 1, -1, -1):
        sizes[unit] = (1.0 - chance[unit]) * sizes[unit + 1]
        sizes[unit, 1:] += chance[unit] * sizes[unit + 1, :-1]
    return sizes


def _spectrum(chance: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray]:
    """(N, F) the factors g, and (F,) the weights of the frequencies in the mean."""
    count = 2 * (chance.size // 2) + 1  # odd: z = -1 could make a factor zero
    angles = 2.0 * np.pi * np.arange(count // 2 + 1) / count
    turn = np.exp(1j * angles)
    factors = 1.0 - chance[:, None] + chance[:, None] * turn
    weights = factors.prod(axis=0) * np.exp(-1j * angles * num)
    weights[1:] *= 2.0  # the frequencies of opposite sign
    kept = np.abs(weights) > NEGLIGIBLE
    return (chance[:, None] * turn / factors)[:, kept], weights[kept] / count


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
_draw_light = InterpretFirst(_draw_sampford, lambda first, others, num, *_: 1000 * num)


@dataclass(frozen=True)
class Sampford(FixedSize):
    """Sampford's design of 1967, for when joint inclusion probabilities are needed.

    It draws with replacement until all units differ.

    Args:
        most_tries: after so many tries it gives up; with many large inclusion probabilities almost
            every try fails.
    """

    most_tries: int = 1_000_000
    guarantee: ClassVar[str] = (
        "exact inclusion and joint inclusion probabilities, n distinct units; rejects until all "
        "differ, which can take too long when many inclusion probabilities are large"
    )

    def __post_init__(self) -> None:
        check_whole(self.most_tries, name="most_tries", least=1)

    def _draw_open(self, inclusion: np.ndarray, num: int, stream: Stream) -> np.ndarray:
        odds = inclusion / (1.0 - inclusion)
        tries = self.most_tries
        drawn = _draw_light(np.cumsum(inclusion), np.cumsum(odds), num, tries, stream.state)
        if drawn.size == 0:
            raise RuntimeError(
                f"Sampford's design rejected {tries} draws of {num} of {inclusion.size} "
                "units; use Deville() or HartleyRao(), which never reject"
            )
        return drawn

    def _open_joint(self, inclusion: np.ndarray, num: int) -> np.ndarray:
        """Sets count in proportion to n - (sum of their inclusion)."""
        factors, weights = _spectrum(inclusion, num)
        open_share = (1.0 - inclusion)[:, None]
        # The sum of 1 - inclusion over a set that has i and j: these two, and the others' mean.
        own = open_share * (1.0 - factors)
        others = (open_share * factors).sum(axis=0)
        half = ((factors * own) * weights) @ factors.T
        both = ((factors * (weights * others)) @ factors.T + half + half.T).real
        return both / (weights * others).sum().real
