"""Clustered sampling: Fraboni, Vidal, Kameni and Lorenzi (ICML 2021), arXiv 2105.05883.

L distributions r_1..r_L over the agents with sum_l r_l(k) = L c_k; one agent is drawn from each,
independently, and the plain mean over the L draws moves the model. Unbiased for sum_k c_k P_k,
whatever the distributions are. "size" (the paper's algorithm 1) pours the agents into L bins in the
order of their weight, once; "similarity" (algorithm 2) groups agents whose last changes point the
same way, anew in every round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from isfed.base.portable_arithmetic import arccos, product, row_norms, weighted_sum
from isfed.base.random_streams import Purpose
from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts, Updates
from isfed.methods.estimators import PlainMean
from isfed.methods.federated import Drawn, Federated, Opened
from isfed.methods.method_protocol import Composed
from isfed.methods.shared_fields import Sampled
from isfed.methods.uniform_samplers import Unscored

By = Literal["size", "similarity"]
LinkageInput = Literal["condensed", "rows"]
ROUNDING = 1e-9  # by which a cluster that fills a bin may exceed it


class ClusterState(NamedTuple):
    """What every agent changed last (for "similarity")."""

    changes: np.ndarray  # (K, M), zero for an agent never heard; (0, M) for "size"


@dataclass(frozen=True)
class OneOfEachGroup(Unscored):
    """One agent from each of L groups; an agent drawn twice works once and counts twice.

    The fields are those of `ClusteredSampling`.
    """

    num_active: int
    by: By
    linkage_input: LinkageInput

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> ClusterState:
        super().init(facts, agents, params)
        rows = facts.num_agents if self.by == "similarity" else 0
        return ClusterState(np.zeros((rows, params.size)))

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        num = self.num_active
        points = agents.stream(Purpose.AGENTS, round_index).uniforms(num + facts.num_agents)
        groups = self.groups(state, facts, points[num:])
        drawn, times = draw_one_of_each(groups, points[:num])
        return Cohort(drawn, num, times.astype(np.float64)), state

    def groups(self, state: ClusterState, facts: Facts, points: np.ndarray) -> np.ndarray:
        """(L, K) the distributions r_l; `points` are K uniforms for the order inside groups."""
        weights = facts.share()
        if self.by == "size":
            return groups_by_size(weights, self.num_active)
        cluster = clusters(state.changes, weights, self.num_active, self.linkage_input)
        order = np.argsort(points, kind="stable")
        return groups_of_clusters(cluster, weights, self.num_active, order)

    def learn(self, state, cohort, updates, evidence, facts, round_index) -> Any:
        if self.by == "similarity":
            state.changes[cohort.agents[updates.place]] = updates.change
        return state


@dataclass(frozen=True)
class MeanOverDraws(PlainMean):
    """The sum of the changes over L: an absence counts as no change, so the direction stays."""

    def mean(self, rows: np.ndarray, opened: Opened, updates: Updates, facts: Facts) -> np.ndarray:
        counts = self.counts_here(opened.cohort, updates, facts)
        return weighted_sum(counts, rows) / opened.cohort.num


@dataclass(frozen=True, kw_only=True)
class ClusteredSampling(Composed, Sampled):
    """Clustered sampling: draws one agent from each of L groups.

    Args:
        by: "size" for fixed groups by weight, "similarity" for groups by the angle between changes.
        linkage_input: what Ward's tree is made of: the "condensed" distances, or the "rows" of
            their square matrix taken as points, which is what the authors' program does.
        divide_by_steps: local steps of step_size / E_k, as in ISFedAvg, instead of step_size.
    """

    by: By = "similarity"
    linkage_input: LinkageInput = "condensed"
    divide_by_steps: bool = False

    def parts(self) -> Federated:
        sampler = OneOfEachGroup(self.num_active, self.by, self.linkage_input)
        return self.made_of(MeanOverDraws(), sampler=sampler)


def draw_one_of_each(groups: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One agent from every row by its uniform: the agents drawn, and how often each was."""
    drawn = []
    for row, point in zip(groups, points, strict=True):
        ends = np.cumsum(row)
        place = int(np.searchsorted(ends, point * ends[-1], side="right"))
        drawn.append(min(place, int(np.flatnonzero(row)[-1])))
    return np.unique(drawn, return_counts=True)


def groups_by_size(weights: np.ndarray, num: int) -> np.ndarray:
    """(L, K) algorithm 1: agents in the order of their weight are poured into L bins.

    >>> groups_by_size(np.full(4, 0.25), 2).tolist()
    [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]
    """
    groups = np.zeros((num, weights.size))
    _pour(groups, num * weights, np.argsort(-weights, kind="stable"))
    return groups


def _pour(groups: np.ndarray, amounts: np.ndarray, order: np.ndarray) -> None:
    """Fill the bins, of capacity 1 each, one after the other; an agent may straddle two."""
    bin_index, last = 0, len(groups) - 1
    free = 1.0 - groups.sum(axis=1)
    for agent in order:
        left = float(amounts[agent])
        while left > 0.0:
            # The last bin takes what rounding leaves over.
            part = left if bin_index == last else min(left, max(free[bin_index], 0.0))
            groups[bin_index, agent] += part
            free[bin_index] -= part
            left -= part
            if free[bin_index] <= 0.0 and bin_index < last:
                bin_index += 1


def clusters(changes: np.ndarray, weights: np.ndarray, num: int, linkage_input: str) -> np.ndarray:
    """(K,) the cluster of every agent: Ward's tree of the angles, cut at a weight of 1/L."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import pdist, squareform

    if weights.size == 1:
        return np.zeros(1, np.int64)
    lengths = row_norms(changes)
    heard = np.flatnonzero(lengths)  # few of many agents, in the first rounds
    moved = changes[heard] / lengths[heard, None]
    cosine = np.ones((weights.size, weights.size))
    cosine[np.ix_(heard, heard)] = product(moved, moved.T)
    angles = arccos(np.clip(cosine, -1.0, 1.0))
    np.fill_diagonal(angles, 0.0)
    rows = linkage_input == "rows"
    tree = linkage(pdist(angles) if rows else squareform(angles, checks=False), "ward")
    total = np.concatenate([weights, np.zeros(len(tree))])
    for i, (one, two) in enumerate(tree[:, :2].astype(int)):
        total[weights.size + i] = total[one] + total[two]
    tree[:, 2] = total[weights.size :]  # grows towards the root, so that the tree can be cut by it
    return fcluster(tree, (1.0 + ROUNDING) / num, criterion="distance") - 1


def groups_of_clusters(
    cluster_of: np.ndarray, weights: np.ndarray, num: int, order: np.ndarray
) -> np.ndarray:
    """(L, K) algorithm 2: the L heaviest clusters get a bin each, the others fill what is free."""
    total = np.bincount(cluster_of, weights=weights)
    by_weight = np.argsort(total, kind="stable")
    groups, amounts = np.zeros((num, weights.size)), num * weights
    left = amounts.copy()
    for place, cluster in enumerate(by_weight[-num:]):
        members = cluster_of == cluster
        fits = min(1.0, 1.0 / amounts[members].sum())  # one agent may weigh more than a bin holds
        groups[place, members] = amounts[members] * fits
        left[members] -= groups[place, members]
    rank = np.empty(total.size, np.int64)
    rank[by_weight] = np.arange(total.size)
    _pour(groups, left, order[np.argsort(rank[cluster_of[order]], kind="stable")])
    return groups
