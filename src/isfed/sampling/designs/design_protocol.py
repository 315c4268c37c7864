"""What a design is, and what the designs of fixed size have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from isfed.base.random_streams import Stream, as_stream
from isfed.sampling.designs.inclusion import check_inclusion

RandomSource = Stream | np.random.Generator | int


@runtime_checkable
class Design(Protocol):
    """A way to draw n of N units with prescribed inclusion probabilities.

    For exact variances (`isfed.theory`) a design also has `joint(inclusion)`, the matrix of joint
    inclusion probabilities; `exact_joint = False` says that they are approximate, and `all_pairs =
    False` that some pairs of units never come together.

    A design that does not draw the same number of units every time says so by `fixed_size = False`;
    without that attribute its draws count as of fixed size, and where that matters (a correction)
    the number drawn is checked.
    """

    def draw(self, inclusion: ArrayLike, rng: Any) -> np.ndarray:
        """The units drawn, by their numbers.

        Args:
            inclusion: (N,) the inclusion probabilities; they sum to the number of units to draw.
            rng: a `Stream` (its `uniforms(count)` are the random numbers to use), a NumPy generator
                or a seed.
        """
        ...


@lru_cache
def compiled_code(kind: type) -> int | None:
    """The number by which compiled code knows a class of designs.

    None where there is none, or where a subclass draws in its own way.
    """
    for above in kind.__mro__:
        if "code" in vars(above):
            return vars(above)["code"]
        if "draw" in vars(above):
            return None
    return None


class FixedSize:
    """Takes the certain units, and leaves the open ones, of inclusion in (0, 1), to a subclass."""

    fixed_size: ClassVar[bool] = True
    _draw_open: Callable[[np.ndarray, int, Stream], Any]  # inclusion, num, stream -> units
    _open_joint: Callable[[np.ndarray, int], np.ndarray]

    def draw(self, inclusion: ArrayLike, rng: RandomSource) -> np.ndarray:
        """The units drawn, in order."""
        values, num = check_inclusion(inclusion)
        taken = values == 1.0
        open_units = np.flatnonzero((values > 0.0) & ~taken)
        left = num - int(np.count_nonzero(taken))
        if open_units.size and left:
            taken[open_units[self._draw_open(values[open_units], left, as_stream(rng))]] = True
        return np.flatnonzero(taken)

    def joint(self, inclusion: ArrayLike) -> np.ndarray:
        """Joint inclusion probabilities."""
        return with_certain(*check_inclusion(inclusion), self._open_joint)


def joint_of_sets(sets: Iterable[tuple[np.ndarray, float]], count: int) -> np.ndarray:
    """Joint inclusion probabilities of `count` units from the sets drawn and their chances."""
    joint = np.zeros((count, count))
    for drawn, chance in sets:
        joint[np.ix_(drawn, drawn)] += chance
    return joint


def with_certain(
    inclusion: np.ndarray, num: int, joint_of_open: Callable[[np.ndarray, int], np.ndarray]
) -> np.ndarray:
    """Joint probabilities of all units, from a function of those that may or may not be drawn."""
    joint = np.outer(inclusion, inclusion)  # right for certain units: P(i and j) = P(j)
    rest = np.flatnonzero((inclusion > 0.0) & (inclusion < 1.0))
    size = num - int(np.count_nonzero(inclusion == 1.0))
    if rest.size:
        pairs = joint_of_open(inclusion[rest], size) if size > 1 else np.zeros((rest.size,) * 2)
        joint[np.ix_(rest, rest)] = np.maximum((pairs + pairs.T) / 2.0, 0.0)
    np.fill_diagonal(joint, inclusion)
    return joint
