"""FedExP's extrapolation, against the formula of its paper written out agent by agent."""

import numpy as np
import pytest

from isfed import PAPER, Clock, HartleyRao, Memory, Uniform
from isfed.federation.compiled_agents import CompiledAgents
from isfed.methods.by_score import ByScore
from isfed.methods.estimators import Extrapolated, HorvitzThompson, InverseResponse, Mean
from isfed.methods.federated import Federated
from isfed.methods.local_steps import LocalSteps

PROBLEM = PAPER.make()
LOCAL = LocalSteps(0.05)
UNIFORM = ByScore(6, Uniform(), HartleyRao())


def make_agents(method, clock=None):
    agents = CompiledAgents(PROBLEM, method.rules(PROBLEM.num_agents), seed=1, repetition=0)
    if clock is not None:
        agents.use_clock(clock)
    return agents


def extrapolated_steps(method, agents, rounds=6):
    """The steps of a run, and what the formula makes of the changes of the same rounds."""
    state = method.start(agents, np.zeros(PROBLEM.num_params))
    found, expected, factors = [], [], []
    for i in range(rounds):
        opened = method.open(state, agents, i)
        updates = agents.train(opened.cohort, opened.sent, opened.work, i)
        places = np.arange(opened.cohort.agents.size)[updates.place]
        total, mean, squares = 0.0, np.zeros(PROBLEM.num_params), 0.0
        for place, change in zip(places, updates.change, strict=True):
            weight = 1.0
            if isinstance(method.estimator.inner, HorvitzThompson):
                weight = 1.0 / (PROBLEM.num_agents * opened.cohort.prob[place])
            total += weight
            mean = mean + weight * change
            squares += weight * sum(entry**2 for entry in change.tolist())
        divisor = opened.cohort.num
        if isinstance(method.estimator.inner, Mean):
            divisor = max(total, 1.0)
        step = mean / divisor
        square = sum(entry**2 for entry in step.tolist())
        factors.append(max(1.0, squares / max(total, 1e-300) / (2 * (square + 1e-6))))
        expected.append(factors[-1] * step)
        before = state.params.copy()
        state, _ = method.close(state, method.facts(agents), opened, updates, i)
        found.append(state.params - before)
    return np.array(found), np.array(expected), factors


@pytest.mark.parametrize(
    ("sampler", "inner", "clock"),
    [
        (UNIFORM, Mean(), None),
        (UNIFORM, Mean(), Clock(drop=0.5)),
        (ByScore(6, Memory()), HorvitzThompson(), None),
    ],
    ids=["mean", "absences", "importance"],
)
def test_the_step_is_as_much_longer_as_the_paper_says(sampler, inner, clock):
    method = Federated(sampler, LOCAL, Extrapolated(inner, epsilon=1e-6))
    found, expected, factors = extrapolated_steps(method, make_agents(method, clock))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-14)
    assert max(factors) > 1.0


def test_nobody_moves_nothing():
    method = Federated(UNIFORM, LOCAL, Extrapolated(Mean()))
    agents = make_agents(method, Clock(drop=0.999))
    state = method.start(agents, np.ones(PROBLEM.num_params))
    np.testing.assert_array_equal(method.round(state, agents, 0).params, state.params)


def test_what_does_not_fit_is_said():
    for inner in (HorvitzThompson("step"), InverseResponse(HorvitzThompson("step"))):
        with pytest.raises(ValueError, match="Extrapolated needs weights on the change"):
            Federated(ByScore(6), LOCAL, Extrapolated(inner))
    with pytest.raises(ValueError, match="epsilon=0"):
        Extrapolated(Mean(), epsilon=0)
