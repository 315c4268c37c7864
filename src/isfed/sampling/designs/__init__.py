"""Draw n of N units with prescribed inclusion probabilities."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from isfed.sampling.designs.brewer import Brewer
from isfed.sampling.designs.conditional_poisson import ConditionalPoisson
from isfed.sampling.designs.cube import Cube
from isfed.sampling.designs.inclusion import inclusion_probabilities
from isfed.sampling.designs.independent import Poisson, WithReplacement
from isfed.sampling.designs.pivotal import LocalPivotal
from isfed.sampling.designs.sampford import Sampford
from isfed.sampling.designs.spread import Spread
from isfed.sampling.designs.stratified import Clustered, Stratified
from isfed.sampling.designs.systematic import Deville, HartleyRao, Systematic
from isfed.sampling.designs.tille import Tille
from isfed.sampling.designs.tree import SumTree

ALL_DESIGNS = (Systematic, HartleyRao, Deville, Sampford, Poisson, WithReplacement)
SPREAD_DESIGNS = (Spread, LocalPivotal)  # those that know more of the units than their number


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

        inclusion: (N,) the inclusion probabilities; they sum to the number of units to draw.
        rng: a `Stream` (its `uniforms(count)` are the random numbers to use), a NumPy generator or
            a seed.
        """
        ...


__all__ = [
    "ALL_DESIGNS",
    "SPREAD_DESIGNS",
    "Brewer",
    "Clustered",
    "ConditionalPoisson",
    "Cube",
    "Design",
    "Deville",
    "HartleyRao",
    "LocalPivotal",
    "Poisson",
    "Sampford",
    "Spread",
    "Stratified",
    "SumTree",
    "Systematic",
    "Tille",
    "WithReplacement",
    "inclusion_probabilities",
]
