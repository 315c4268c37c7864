"""HierFAVG: Liu, Zhang, Song and Letaief, "Client-Edge-Cloud Hierarchical Federated Learning"
(ICC 2020), arXiv 1905.06641.

Agents belong to edges. In a round, tau_2 times: every agent takes tau_1 steps from its edge's
model, and the edge averages its agents. Then the cloud averages the edges. An edge of which nobody
answers keeps the cloud's old model, and that counts with the full weight of the edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isfed.base.argument_checks import check_whole
from isfed.base.portable_arithmetic import product, weighted_sum
from isfed.base.random_streams import Purpose
from isfed.federation.agents import Agents
from isfed.methods.estimators import TINY
from isfed.methods.method_protocol import Count
from isfed.methods.shared_fields import Everybody


class HierState(NamedTuple):
    """The cloud's model, and the edge of every agent, (K,)."""

    params: np.ndarray
    edges: np.ndarray


def edge_of(groups: Sequence[Sequence[int]], num_agents: int) -> np.ndarray:
    """(K,) the edge of every agent; an error unless each agent is in exactly one group."""
    edges = np.zeros(num_agents, np.int64)
    for edge, group in enumerate(groups):
        if not len(group):
            raise ValueError(f"edge {edge} has no agents")
        if not set(group) <= set(range(num_agents)):
            raise ValueError(f"edge {edge} names an agent outside 0 to {num_agents - 1}")
        edges[np.asarray(group, np.int64)] = edge
    times = np.bincount(np.concatenate(groups).astype(np.int64), minlength=num_agents)
    if (times != 1).any():
        agent = int(np.flatnonzero(times != 1)[0])
        raise ValueError(
            f"agent {agent} belongs to {times[agent]} edges; every agent must belong to exactly one"
        )
    return edges


@dataclass(frozen=True, kw_only=True)
class HierFAVG(Everybody):
    """Hierarchical averaging: edges average their agents' models, the cloud those of the edges.

    Args:
        edge_rounds: tau_2, how often an edge averages before the cloud does.
        edges: the number of edges, among which agents are divided at random in equal numbers; or a
            list with the agents of every edge.
    """

    edge_rounds: Count = 1
    edges: int | Sequence[Sequence[int]] = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.edges, Sequence) and not self.edges:
            raise ValueError("edges=[] must have at least one edge")
        if not isinstance(self.edges, Sequence):
            check_whole(self.edges, name="edges", least=1)

    def start(self, agents: Agents, params: np.ndarray) -> HierState:
        super().start(agents, params)
        count = agents.num_agents
        if isinstance(self.edges, Sequence):
            return HierState(params.copy(), edge_of(self.edges, count))
        if self.edges > count:
            raise ValueError(f"edges={self.edges} exceeds num_agents={count}")
        order = np.argsort(agents.stream(Purpose.CLUSTERS, 0).uniforms(count), kind="stable")
        edges = np.empty(count, np.int64)
        edges[order] = np.arange(count) % self.edges
        return HierState(params.copy(), edges)

    def round(self, state: Any, agents: Agents, round_index: int) -> HierState:
        edges = state.edges
        members = edges == np.arange(edges.max() + 1)[:, None]  # (edges, K)
        mass = (members * agents.facts(self.client_weights).share()).sum(axis=1)
        belongs = members * self.weights(agents, round_index)
        here = np.maximum(belongs.sum(axis=1), TINY)  # an edge of which nobody answers stays
        models = np.repeat(state.params[None], mass.size, axis=0)
        for j in range(self.edge_rounds):
            # Every average at the edges has an address of its own.
            time = round_index * self.edge_rounds + j
            changes = self.changes_of_all(agents, models[edges], round_index, time=time)
            models = models + product(belongs, changes) / here[:, None]
        agents.charge_messages(models_down=mass.size, models_up=mass.size)
        return HierState(weighted_sum(mass, models) / mass.sum(), edges)
