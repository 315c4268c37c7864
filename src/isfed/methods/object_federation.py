"""One repetition of a composition with its agents as objects to look at."""

from __future__ import annotations

from typing import Any

import numpy as np

from isfed.federation.object_agents import ObjectAgents
from isfed.problems import Problem


class Federation:
    """A method and its agents, stepped in process: the same rounds as those of `simulate`."""

    def __init__(
        self,
        problem: Problem,
        algorithm: Any,
        *,
        seed: int,
        repetition: int,
        initial: np.ndarray,
    ) -> None:
        self.problem = problem
        self.method = algorithm if hasattr(algorithm, "close") else algorithm.federated
        rules = self.method.rules(problem.num_agents)
        self.objects = ObjectAgents(problem, rules, seed=seed, repetition=repetition)
        self.agents = self.objects.agents
        self.state = self.method.start(self.objects, initial)
        self.watched = np.empty(0)  # the telemetry of the last round

    @property
    def params(self) -> np.ndarray:
        """(M,) the model."""
        return self.method.model(self.state)

    @property
    def table(self) -> Any:
        """The agents' scores as the next draw uses them."""
        return self.method.sampler.table(self.state.sampler, self.problem.num_agents)

    def step(self, round_index: int) -> None:
        """One round."""
        self.state, info = self.method.step(self.state, self.objects, round_index)
        row = self.method.telemetry(self.method.facts(self.objects), info)
        self.watched = np.empty(0) if row is None else row
