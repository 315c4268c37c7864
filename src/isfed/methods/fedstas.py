"""FedSTaS: strata of agents whose gradients are alike (2025; public code icesabe/FL).

In every round all agents tell a sketch Z_k, a few numbers made of their full gradient. Agents are
put into H strata by k-means on the sketches. Stratum h gets L_h places, in proportion to its
number of agents times their mean distance from each other (Neyman), at least one each. Inside,
agents are drawn by |Z_k|, with fixed size.

The public program sorts the entries of a gradient into centres whose order is arbitrary and takes
the plain mean (`weights="plain"`), which is biased. Here the sketch is a fixed random projection
and weights are c_k / pi_k: unbiased. Its sampling of examples is left to the local steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from isfed.base.portable_arithmetic import product
from isfed.base.random_streams import Purpose
from isfed.federation.messages import Cohort
from isfed.methods.change_norms import capped_inclusion, lengths_of
from isfed.methods.estimators import HorvitzThompson, PlainMean
from isfed.methods.federated import Drawn, Federated
from isfed.methods.method_protocol import Composed, Count
from isfed.methods.shared_fields import Sampled, answering
from isfed.methods.uniform_samplers import Unscored
from isfed.sampling.designs import Deville
from isfed.sampling.designs.spread import projection

SWEEPS = 25  # of k-means


def strata_of_points(points: np.ndarray, num: int) -> np.ndarray:
    """(n,) the stratum of every point: k-means from far points, empty strata left out.

    >>> strata_of_points(np.array([[0.0], [5.0], [0.1], [5.1]]), 2).tolist()
    [0, 1, 0, 1]
    """
    far, centres = np.full(len(points), np.inf), [int(np.argmax(lengths_of(points)))]
    for _ in range(num - 1):
        far = np.minimum(far, lengths_of(points - points[centres[-1]]))
        centres.append(int(np.argmax(far)))
    middle = points[centres]
    nearest = np.zeros(len(points), np.int64)
    for _ in range(SWEEPS):
        away = np.stack([lengths_of(points - one) for one in middle])
        closest = np.argmin(away, axis=0)
        if (closest == nearest).all():
            break
        nearest = closest
        for h in np.unique(nearest).tolist():
            middle[h] = points[nearest == h].mean(axis=0)
    _, first, names = np.unique(nearest, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first, kind="stable"), kind="stable")[names]


def places_of_strata(stratum: np.ndarray, points: np.ndarray, num: int) -> np.ndarray:
    """(H,) how many agents of each stratum are drawn: Neyman's, whole, from 1 to all of it."""
    sizes = np.bincount(stratum)
    spread = np.zeros(sizes.size)
    for h, size in enumerate(sizes.tolist()):
        rows = points[stratum == h]
        pairs = max(size * (size - 1), 1)
        spread[h] = sum(float(lengths_of(rows - one).sum()) for one in rows) / pairs
    mass = sizes * spread if (sizes * spread).sum() > 0.0 else sizes.astype(float)
    places = np.ones(sizes.size, np.int64)
    for _ in range(num - sizes.size):  # the next place goes where it is most lacking
        lack = np.where(places < sizes, mass / mass.sum() * num - places, -np.inf)
        places[int(np.argmax(lack))] += 1
    return places


@dataclass(frozen=True)
class StratifiedCohort(Unscored):
    """Agents drawn inside strata of similar gradients, by the length of a sketch of them.

    The fields are those of `FedSTaS`.
    """

    num_active: Count
    strata: Count = 10
    sketch: Count = 10
    gives: ClassVar[set[str]] = {"inclusion probabilities"}  # fewer are drawn if few answer

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        who = np.arange(facts.num_agents)
        who = who[answering(agents, who, round_index)]
        rows = agents.gradients(who, params, kept=True)[:, : facts.num_trained]
        agents.charge_messages(scalars_up=self.sketch * who.size)
        heard = np.isfinite(rows).all(axis=1)
        who, points = who[heard], product(rows[heard], projection(rows.shape[1], self.sketch))
        chances = self.inclusion(points, facts.weighed(lengths_of(points), who))
        stream = agents.stream(Purpose.AGENTS, round_index)
        drawn = np.sort(np.concatenate([np.empty(0, np.int64), *self._inside(chances, stream)]))
        prob = chances[1][drawn] / self.num_active
        cohort = Cohort(who[drawn], self.num_active, np.ones(drawn.size), prob, has_model=True)
        return cohort, state

    def inclusion(self, points: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(n,) the stratum of every agent, and its inclusion probability."""
        num = min(self.num_active, len(points))
        if not num:
            return np.empty(0, np.int64), np.empty(0)
        stratum = strata_of_points(points, min(self.strata, num))
        chances = np.empty(len(points))
        for h, places in enumerate(places_of_strata(stratum, points, num).tolist()):
            chances[stratum == h] = capped_inclusion(scores[stratum == h], places)
        return stratum, chances

    def _inside(self, chances: tuple[np.ndarray, np.ndarray], stream: Any) -> list[np.ndarray]:
        """The agents drawn in every stratum."""
        stratum, inclusion = chances
        groups = [np.flatnonzero(stratum == h) for h in range(int(stratum.max(initial=-1)) + 1)]
        return [group[Deville().draw(inclusion[group], stream)] for group in groups]


@dataclass(frozen=True, kw_only=True)
class FedSTaS(Composed, Sampled):
    """FedSTaS: draws agents inside strata of similar gradients.

    Args:
        strata: H, the number of strata, at most L.
        sketch: how many numbers every agent tells of its gradient.
        weights: "inverse", c_k over the probability, or "plain", as in the public program.
        divide_by_steps: local steps of step_size / E_k, as in ISFedAvg, instead of step_size.
    """

    strata: Count = 10
    sketch: Count = 10
    weights: Literal["inverse", "plain"] = "inverse"
    divide_by_steps: bool = False

    def parts(self) -> Federated:
        estimator = HorvitzThompson() if self.weights == "inverse" else PlainMean()
        sampler = StratifiedCohort(self.num_active, self.strata, self.sketch)
        return self.made_of(estimator, sampler=sampler)
