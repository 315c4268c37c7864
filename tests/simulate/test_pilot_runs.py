"""The automatic step of a run: the best of a grid, whatever the way to learn."""

from dataclasses import replace

import numpy as np
import pytest

from isfed import EQUAL, FederatedData, ISFedAvg, Logistic, Problem, Uniform, simulate
from isfed.simulate.pilot_runs import _lowest, with_best_step_size


def test_the_lowest_of_a_valley_is_found():
    for low in (-17, 0, 3, 30):
        assert _lowest(lambda at, low=low: abs(at - low), 0) == low
    assert _lowest(lambda at: np.inf if at > 2 else -at, 0) == 2


@pytest.mark.parametrize("choices", [{}, {"correction": "drift", "examples": Uniform()}])
@pytest.mark.parametrize("loss", ["square", "logistic"])
def test_auto_is_near_the_best_fixed_step(loss, choices):
    problem = EQUAL.replace(num_agents=20, num_examples=20, num_features=3).make()
    if loss == "logistic":
        data = problem.data
        signs = FederatedData(data.features, np.sign(data.targets), data.offsets)
        problem = Problem(signs, Logistic(0.01), batch_size=2)
    given = ISFedAvg(step_size="auto", num_active=4, **choices)
    auto = with_best_step_size(problem, given, rounds=300)

    def excess(method):
        found = simulate(problem, method, rounds=300, repetitions=8, keep=range(270, 301, 5))
        models = found.kept.reshape(-1, 3)
        return np.mean([problem.risk(w) for w in models]) - problem.risk(problem.optimum)

    fixed = [replace(auto, step_size=f * auto.step_size) for f in (0.1, 0.25, 0.5, 2.0, 4.0)]
    assert excess(auto) < 1.5 * min(map(excess, fixed))
    assert simulate(problem, given, rounds=300).step_size == auto.step_size


def test_what_cannot_be_tried_is_left_alone():
    problem = EQUAL.replace(num_agents=10, num_examples=10).make()
    moving = ISFedAvg(step_size="auto", num_active=3, drift=0.1)
    assert with_best_step_size(problem, moving, rounds=9) is moving
    fixed = replace(moving, step_size=0.1, drift=0.0)
    assert with_best_step_size(problem, fixed, rounds=9) is fixed
