"""HiCS-FL: Chen and Vikalo, "Heterogeneity-Guided Client Sampling: Towards Fast and Efficient
Non-IID Federated Learning" (NeurIPS 2024), arXiv 2310.00198.

The update of a softmax output layer tells how even the classes of an agent are: with m_k(c) the
mean of row c of the update of its weights, H_k is the entropy of softmax(m_k / temperature). First
everybody is heard once, in order. Then agents are put into M clusters (Ward) by the angle between
their last updates of that layer plus lambda |H_i - H_j|. A cluster is drawn with probability
proportional to exp(gamma (1 - t / T) mean H), an agent inside uniformly. The plain mean is taken.

The public program does this only while the variance of H is below 0.1, and clustered sampling
otherwise: `as_coded=True`. There is no such layer in a regression, which is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isfed.base.portable_arithmetic import arccos, exp, log, product
from isfed.base.random_streams import Purpose
from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts
from isfed.methods.change_norms import lengths_of
from isfed.methods.clustered_sampling import clusters, draw_one_of_each, groups_of_clusters
from isfed.methods.estimators import PlainMean
from isfed.methods.federated import Drawn, Federated
from isfed.methods.method_protocol import Composed, Count, NotNegative, Positive
from isfed.methods.shared_fields import Sampled
from isfed.methods.uniform_samplers import Unscored

SPREAD = 0.1  # the variance of H above which the public program does something else


class LayerState(NamedTuple):
    """The last update of the output layer of every agent."""

    updates: np.ndarray  # (K, d), zero for an agent never heard
    shape: np.ndarray  # (2,) classes and inputs of the layer


def layer_of(agents: Agents, given: tuple[int, int] | None) -> tuple[int, int]:
    """Classes and inputs of the output layer: as given, or those of a softmax loss."""
    if given is not None:
        return given
    loss = getattr(getattr(agents, "problem", None), "loss", None)
    classes = getattr(loss, "num_classes", None)
    if classes is None:
        raise ValueError(
            f"HiCS-FL needs a softmax output layer, and loss={type(loss).__name__} has none that "
            "is known; use Softmax, or for a network output_layer=(classes, inputs)"
        )
    return classes, agents.num_params // classes


def entropies(updates: np.ndarray, shape: Any, temperature: float) -> np.ndarray:
    """(K,) how even the classes of every agent seem, from updates of its output layer."""
    classes, inputs = int(shape[0]), int(shape[1])
    rows = updates[:, : classes * inputs].reshape(len(updates), classes, inputs)
    mean = rows.mean(axis=2) / temperature
    chance = exp(mean - mean.max(axis=1, keepdims=True))
    chance /= chance.sum(axis=1, keepdims=True)
    return -(chance * log(np.maximum(chance, 1e-300))).sum(axis=1)


@dataclass(frozen=True)
class ByEntropy(Unscored):
    """Agents from clusters of similar output layers, those of even classes more often at first.

    The fields are those of `HiCSFL`.
    """

    num_active: Count
    horizon: Count
    clusters: Count = 10
    sharpness: NotNegative = 4.0
    entropy_weight: NotNegative = 10.0
    temperature: Positive = 1e-3
    output_layer: tuple[int, int] | None = None
    as_coded: bool = False

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> LayerState:
        super().init(facts, agents, params)
        classes, inputs = layer_of(agents, self.output_layer)
        size = classes * inputs + (classes if self.output_layer is not None else 0)
        if size > facts.num_trained:
            raise ValueError(
                f"output_layer={(classes, inputs)} has {size} entries with its bias, the model "
                f"{facts.num_trained}"
            )
        return LayerState(np.zeros((facts.num_agents, size)), np.array([classes, inputs]))

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        num, count = self.num_active, facts.num_agents
        points = agents.stream(Purpose.AGENTS, round_index).uniforms(2 * num + count)
        times = None
        if round_index * num < count:  # everybody once, in order
            drawn = np.arange(round_index * num, min((round_index + 1) * num, count))
        else:
            even = entropies(state.updates, state.shape, self.temperature)
            if self.as_coded and even.var() >= SPREAD:
                share = facts.share()
                order = np.argsort(points[2 * num :], kind="stable")
                linkage = clusters(state.updates, share, num, "condensed")
                groups = groups_of_clusters(linkage, share, num, order)
                drawn, times = draw_one_of_each(groups, points[:num])
            else:
                cluster = self.clusters_of(state.updates, even)
                chances = self.chances(cluster, even, round_index)
                drawn = np.sort(from_clusters(cluster, chances, points[: 2 * num]))
        times = np.ones(drawn.size) if times is None else times.astype(np.float64)
        return Cohort(drawn, num, times), state

    def clusters_of(self, updates: np.ndarray, even: np.ndarray) -> np.ndarray:
        """(K,) the cluster of every agent: Ward's tree of angles and entropies."""
        from scipy.cluster.hierarchy import fcluster, linkage
        from scipy.spatial.distance import squareform

        if len(updates) == 1 or self.clusters == 1:
            return np.zeros(len(updates), np.int64)
        unit = updates / np.maximum(lengths_of(updates), 1e-300)[:, None]
        cosine = product(unit, np.ascontiguousarray(unit.T))
        far = arccos(np.clip(cosine, -1.0, 1.0))
        far += self.entropy_weight * np.abs(even[:, None] - even[None])
        np.fill_diagonal(far, 0.0)
        tree = linkage(squareform(far, checks=False), "ward")
        return fcluster(tree, self.clusters, criterion="maxclust") - 1

    def chances(self, cluster: np.ndarray, even: np.ndarray, round_index: int) -> np.ndarray:
        """(M,) the probability of every cluster, which tend to equal ones by round T."""
        mean = np.bincount(cluster, weights=even) / np.bincount(cluster)
        power = self.sharpness * max(0.0, 1.0 - round_index / self.horizon) * mean
        mass = exp(power - power.max())
        return mass / mass.sum()

    def learn(self, state, cohort, updates, evidence, facts, round_index) -> Any:
        rows = evidence.change[:, facts.num_trained - state.updates.shape[1] :]
        good = np.isfinite(rows).all(axis=1)
        state.updates[cohort.agents[updates.place][good]] = rows[good]
        return state


def from_clusters(cluster: np.ndarray, chances: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Agents without replacement: first a cluster that has some left, then one of them."""
    left = [np.flatnonzero(cluster == c).tolist() for c in range(chances.size)]
    drawn = []
    for one, other in zip(points[0::2].tolist(), points[1::2].tolist(), strict=True):
        ends = np.cumsum([p if group else 0.0 for p, group in zip(chances, left, strict=True)])
        group = left[min(int(np.searchsorted(ends, one * ends[-1], side="right")), len(left) - 1)]
        drawn.append(group.pop(int(other * len(group))))
    return np.array(drawn, np.int64)


@dataclass(frozen=True, kw_only=True)
class HiCSFL(Composed, Sampled):
    """HiCS-FL: hears agents with even classes more often, as their output layers tell.

    It needs a softmax output layer.

    Args:
        horizon: T, the number of rounds of the run.
        clusters: M, how many clusters of agents are made.
        sharpness: gamma, how strongly clusters of even classes are preferred at first.
        entropy_weight: lambda, the weight of entropies in the distance of two agents.
        temperature: of the softmax that estimates the classes of an agent.
        output_layer: for a network, the classes and inputs of its last layer, which has a bias;
            without, those of the `Softmax` loss.
        as_coded: clustered sampling where entropies vary, as the public program does.
        divide_by_steps: local steps of step_size / E_k, as in ISFedAvg, instead of step_size.
    """

    horizon: Count = 500
    clusters: Count = 10
    sharpness: NotNegative = 4.0
    entropy_weight: NotNegative = 10.0
    temperature: Positive = 1e-3
    output_layer: tuple[int, int] | None = None
    as_coded: bool = False
    divide_by_steps: bool = False

    def parts(self) -> Federated:
        sampler = ByEntropy(
            self.num_active, self.horizon, self.clusters, self.sharpness, self.entropy_weight,
            self.temperature, self.output_layer, self.as_coded,
        )  # fmt: skip
        return self.made_of(PlainMean(), sampler=sampler)
