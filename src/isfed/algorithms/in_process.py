"""One repetition of ISFedAvg with its cloud and its agents as objects to look at."""

from __future__ import annotations

import numpy as np

from isfed.algorithms import corrected, hearing
from isfed.algorithms.corrected import CorrectedState
from isfed.algorithms.isfedavg import ISFedAvg
from isfed.base.streams import Purpose
from isfed.federation.cloud import Cloud
from isfed.federation.object_agents import ObjectAgents
from isfed.problems import Problem


class Federation:
    """A cloud and its agents, stepped in process: the same rounds as `ISFedAvg.round`."""

    def __init__(
        self,
        problem: Problem,
        algorithm: ISFedAvg,
        *,
        seed: int,
        repetition: int,
        initial: np.ndarray,
    ) -> None:
        self.problem = problem
        self.algorithm = algorithm
        rules = algorithm.rules(problem.num_agents)
        self.objects = ObjectAgents(problem, rules, seed=seed, repetition=repetition)
        self.agents = self.objects.agents
        self.state = algorithm.start(self.objects, initial)
        self.cloud = Cloud(
            initial,
            problem.num_agents,
            algorithm.num_active,
            algorithm.agents,
            algorithm.agent_design,
        )
        self.cloud.key = self.objects.key(Purpose.AGENTS)
        self.cloud.table.nodes = self.state.agent_nodes

    def score_all(self, params: np.ndarray) -> None:
        """Every agent's score at a model, eq. (50)."""
        self.cloud.table.replace(self.objects.scores_at(params))

    @property
    def watched(self) -> np.ndarray:
        """The telemetry of the last round."""
        return self.state.watched

    def step(self, round_index: int) -> None:
        """One round of Algorithm 1."""
        self.state = self.algorithm.drifted(self.state, self.objects, round_index)
        shift = self.state.shift if self.state.shift.size else None
        kept = self.state.hearing
        hearing.prepare(self.algorithm, kept, self.cloud)
        if isinstance(self.state, CorrectedState):
            watched = corrected.step(
                self.algorithm, self.cloud, self.state.reference, self.objects, round_index, shift,
                kept,
            )  # fmt: skip
        else:
            watched = self.algorithm.step(self.cloud, self.objects, round_index, shift, kept)
        self.state = self.state._replace(params=self.cloud.params, watched=watched)
