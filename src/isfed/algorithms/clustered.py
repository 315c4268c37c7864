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

from isfed.algorithms.parts import Sampled, agent_weights, check_choice
from isfed.base.arithmetic import arccos, product, row_norms, weighted_sum
from isfed.base.streams import Purpose
from isfed.federation.agents import Agents

By = Literal["size", "similarity"]
LinkageInput = Literal["condensed", "rows"]
ROUNDING = 1e-9  # by which a cluster that fills a bin may exceed it


class ClusteredState(NamedTuple):
    """The model, and what every agent changed last (for "similarity")."""

    params: np.ndarray  # (M,) w
    changes: np.ndarray  # (K, M), zero for an agent never heard; (0, M) for "size"


@dataclass(frozen=True, kw_only=True)
class ClusteredSampling(Sampled):
    """Clustered sampling: draws one agent from each of L groups.

    by: "size" for fixed groups by weight, "similarity" for groups by the angle between changes.
    linkage_input: what Ward's tree is made of: the "condensed" distances, or the "rows" of their
        square matrix taken as points, which is what the authors' program does.
    divide_by_steps: local steps of step_size / E_k, as in ISFedAvg, instead of step_size.
    """

    by: By = "similarity"
    linkage_input: LinkageInput = "condensed"
    divide_by_steps: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.by, By, name="by")
        check_choice(self.linkage_input, LinkageInput, name="linkage_input")

    def start(self, agents: Agents, params: np.ndarray) -> ClusteredState:
        """No agent has worked yet."""
        super().start(agents, params)
        rows = agents.num_agents if self.by == "similarity" else 0
        return ClusteredState(params.copy(), np.zeros((rows, params.size)))

    def round(self, state: Any, agents: Agents, round_index: int) -> ClusteredState:
        """Group, draw one of each, average; an agent drawn twice works once and counts twice."""
        points = agents.stream(Purpose.AGENTS, round_index).uniforms(
            self.num_active + agents.num_agents
        )
        groups = self.groups(state, agents, points[self.num_active :])
        active, times = draw_one_of_each(groups, points[: self.num_active])
        if agents.clock.drop > 0.0:
            here = agents.answers(active, round_index)
            active, times = active[here], times[here]
        if not active.size:
            return state
        step = np.full(active.size, float(self.step_size))
        if self.divide_by_steps:
            step = step / self.steps_of(agents, active)
        found = self.work(agents, active, state.params, round_index, step=step).changes
        changes = state.changes
        if self.by == "similarity":
            changes = changes.copy()
            changes[active] = found
        # Over L, whoever answers: an absence counts as no change, and the mean keeps its direction.
        return ClusteredState(state.params + weighted_sum(times, found) / self.num_active, changes)

    def groups(self, state: ClusteredState, agents: Agents, points: np.ndarray) -> np.ndarray:
        """(L, K) the distributions r_l; `points` are K uniforms for the order inside groups."""
        weights = agent_weights(agents, self.client_weights)
        if self.by == "size":
            return groups_by_size(weights, self.num_active)
        found = clusters(state.changes, weights, self.num_active, self.linkage_input)
        return groups_of_clusters(
            found, weights, self.num_active, np.argsort(points, kind="stable")
        )


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
    found: np.ndarray, weights: np.ndarray, num: int, order: np.ndarray
) -> np.ndarray:
    """(L, K) algorithm 2: the L heaviest clusters get a bin each, the others fill what is free."""
    total = np.bincount(found, weights=weights)
    by_weight = np.argsort(total, kind="stable")
    groups, amounts = np.zeros((num, weights.size)), num * weights
    left = amounts.copy()
    for place, cluster in enumerate(by_weight[-num:]):
        members = found == cluster
        fits = min(1.0, 1.0 / amounts[members].sum())  # one agent may weigh more than a bin holds
        groups[place, members] = amounts[members] * fits
        left[members] -= groups[place, members]
    rank = np.empty(total.size, np.int64)
    rank[by_weight] = np.arange(total.size)
    _pour(groups, left, order[np.argsort(rank[found[order]], kind="stable")])
    return groups
