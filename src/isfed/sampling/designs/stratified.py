"""Wrappers of a design: apart in every stratum, or whole clusters of units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from isfed.base.random_streams import as_stream
from isfed.sampling.designs.design_protocol import RandomSource
from isfed.sampling.designs.inclusion import check_design, check_scores


@dataclass(frozen=True, eq=False)
class _Grouped:
    """A design applied to labelled groups of units; `_labels` names the field of the labels."""

    _labels: ClassVar[str]

    design: Any
    names: np.ndarray = field(init=False, repr=False)  # the distinct labels
    codes: np.ndarray = field(init=False, repr=False)  # (N,) the number of each unit's label

    def __post_init__(self) -> None:
        check_design(self.design)
        given = np.asarray(getattr(self, self._labels))
        if given.ndim != 1 or given.size == 0:
            raise ValueError(
                f"{self._labels} must be a label for each unit, got shape {given.shape}"
            )
        names, codes = np.unique(given, return_inverse=True)
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "codes", codes.reshape(-1))

    @property
    def exact_joint(self) -> bool:
        """Whether joint probabilities are exact."""
        return getattr(self.design, "exact_joint", True)

    def _checked(self, inclusion: ArrayLike) -> np.ndarray:
        values = check_scores(inclusion, name="inclusion")
        if values.size != self.codes.size:
            raise ValueError(
                f"{self._labels} has {self.codes.size} labels, but there are {values.size} units"
            )
        return values


@dataclass(frozen=True, eq=False)
class Stratified(_Grouped):
    """A design applied in every stratum on its own, so that each stratum is surely represented.

    Args:
        design: what draws within a stratum.
        strata: (N,) the label of each unit's stratum. In each of them the inclusion probabilities
            must sum to a whole number.

    Examples:
        >>> from isfed.sampling import Brewer
        >>> Stratified(Brewer(), ["a", "a", "b", "b"]).draw([0.5, 0.5, 0.5, 0.5], rng=0).size
        2
    """

    strata: Any
    _labels: ClassVar[str] = "strata"
    guarantee: ClassVar[str] = (
        "what the design within guarantees, and as many units of each stratum as were asked for"
    )

    @property
    def fixed_size(self) -> bool:
        """Whether every draw has the same number of units."""
        return getattr(self.design, "fixed_size", True)

    def parts(self, inclusion: ArrayLike) -> Iterator[tuple[Any, np.ndarray, np.ndarray]]:
        """The label of each stratum, its units, and their inclusion probabilities."""
        values = self._checked(inclusion)
        for code, label in enumerate(self.names.tolist()):
            units = np.flatnonzero(self.codes == code)
            total = values[units].sum()
            if abs(total - round(total)) > 1e-9 * units.size or total < 0.5:
                raise ValueError(
                    f"inclusion sums to {total} in the stratum {label!r}, not to a whole number >= "
                    "1; make it with inclusion_probabilities for each stratum on its own"
                )
            yield label, units, values[units]

    def draw(self, inclusion: ArrayLike, rng: RandomSource) -> np.ndarray:
        stream = as_stream(rng)
        parts = list(self.parts(inclusion))
        return np.sort(
            np.concatenate([units[self.design.draw(chance, stream)] for _, units, chance in parts])
        )

    def joint(self, inclusion: ArrayLike) -> np.ndarray:
        """As exact as those of the design within; units of different strata are independent."""
        values = self._checked(inclusion)
        joint = np.outer(values, values)
        for _, units, chance in self.parts(inclusion):
            joint[np.ix_(units, units)] = self.design.joint(chance)
        return joint


@dataclass(frozen=True, eq=False)
class Clustered(_Grouped):
    """Whole clusters of units, drawn by a design: who is drawn brings all of its cluster.

    Args:
        design: what draws clusters; they come in the order of their sorted labels. It may be
            `Stratified(design, strata of the clusters)`.
        clusters: (N,) the label of each unit's cluster. Units of a cluster have the same inclusion
            probability, and those of the clusters must sum to a whole number.

    Examples:
        >>> from isfed.sampling import Brewer
        >>> Clustered(Brewer(), [0, 0, 1, 1, 1]).draw([0.4, 0.4, 0.6, 0.6, 0.6], rng=0).tolist()
        [2, 3, 4]
    """

    clusters: Any
    _labels: ClassVar[str] = "clusters"
    fixed_size: ClassVar[bool] = False  # clusters may differ in size
    guarantee: ClassVar[str] = (
        "exact inclusion probabilities, whole clusters; the number of units is random where "
        "clusters differ in size"
    )

    def of_clusters(self, inclusion: ArrayLike) -> np.ndarray:
        """(C,) the inclusion probabilities of the clusters."""
        values = self._checked(inclusion)
        chance = np.zeros(self.names.size)
        chance[self.codes] = values
        wrong = np.flatnonzero(values != chance[self.codes])
        if wrong.size:
            label = self.names[self.codes[wrong[0]]].item()
            raise ValueError(
                f"the units of cluster {label!r} have different inclusion probabilities; a cluster "
                "is drawn as a whole, so give them all the same one"
            )
        return chance

    def draw(self, inclusion: ArrayLike, rng: RandomSource) -> np.ndarray:
        drawn = self.design.draw(self.of_clusters(inclusion), rng)
        return np.flatnonzero(np.isin(self.codes, drawn))

    def joint(self, inclusion: ArrayLike) -> np.ndarray:
        joint = self.design.joint(self.of_clusters(inclusion))
        return joint[np.ix_(self.codes, self.codes)]
