"""What the tests of corrections share: a small problem, the choices, a round as prescribed."""

import copy
from typing import Any

import numpy as np
import pytest

from isfed import (
    Current,
    Deville,
    FederatedData,
    ISFedAvg,
    LeastSquares,
    Memory,
    Problem,
    Running,
    Score,
    Uniform,
)
from isfed.federation.variate_updates import Correction
from isfed.sampling.policies import Table

CORRECTIONS = {
    "change": {"weighting": "change"},
    "difference": {"correction": "difference"},
    "difference on steps": {"correction": "difference", "weighting": "step"},
    "drift": {"correction": "drift"},
    "fixed gain, from zero": {"correction": Correction("drift", gain=0.4, unseen="zero")},
}
POLICIES = {
    "uniform": (Uniform(), Uniform()),
    "memory": (Memory(), Memory()),
    "memory, uniform": (Memory(), Uniform()),
    "second moment": (Memory(score=Score.SECOND_MOMENT), Uniform()),
    "running": (Running(), Running()),
    "current": (Current(), Current()),
}


def small_problem(*, num_agents=5, full=False, steps=None, seed=0):
    """Agents that disagree, ragged in everything."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(3, 7, size=num_agents)
    agents = []
    for n in sizes:
        x = rng.standard_normal((n, 3)) * rng.uniform(0.5, 2.0)
        agents.append((x, x @ rng.standard_normal(3) + rng.standard_normal(n)))
    batch = sizes if full else [int(rng.integers(1, n)) for n in sizes]
    local_steps = rng.integers(1, 4, size=num_agents) if steps is None else steps
    return Problem(FederatedData.from_agents(agents), LeastSquares(0.01), local_steps, batch)


def make(problem, choices, policies=None, design=None, **options):
    agents, examples = policies or (Memory(), Memory())
    return ISFedAvg(
        num_active=options.pop("num_active", 2),
        step_size=options.pop("step_size", 0.02),
        agents=agents,
        examples=examples,
        agent_design=design or Deville(),
        **choices,
        **options,
    )


def reference_of(state) -> Any:
    """The control variates in a state, with or without an adjustment for absences; None without."""
    kept = getattr(state.estimator, "inner", state.estimator)
    return kept if kept else None


def copied(state) -> Any:
    """A state that a round may write into."""
    return copy.deepcopy(state)


def round_with(algorithm, state, agents, units) -> Any:
    """A round in which these agents are drawn."""
    draw = Table.draw

    def prescribed(self, num, stream):
        if self.count != agents.num_agents or self.policy is not algorithm.agents:
            return draw(self, num, stream)
        return units, self.inclusion(num)[units] / num

    memories = [(a.table.nodes.copy(), a.memory.copy()) for a in agents.agents]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "draw", prescribed)
        after = algorithm.round(state, agents, 99)
    for agent, (nodes, memory) in zip(agents.agents, memories, strict=True):
        agent.table.nodes[:], agent.memory[:] = nodes, memory
    return after
