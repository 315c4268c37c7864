"""FedAvg and Dynamic FedAvg: their identities, and tracking of a drifting optimum."""

from typing import Any

import numpy as np
import pytest

from isfed import (
    PAPER,
    DynamicFedAvg,
    FedAvg,
    FederatedData,
    HartleyRao,
    ISFedAvg,
    LeastSquares,
    Problem,
    Uniform,
    WithReplacement,
    simulate,
)

RUN: dict[str, Any] = {"rounds": 60, "repetitions": 3, "seed": 9}


def make_problem(*, local_steps: Any = 1):
    rng = np.random.default_rng(21)
    agents = [(rng.standard_normal((n, 3)), rng.standard_normal(n)) for n in (4, 9, 3, 6)]
    data = FederatedData.from_agents(agents)
    return Problem(data, LeastSquares(0.01), local_steps=local_steps, batch_size=[2, 3, 3, 1])


def without_replacement(*, step_size):
    """FedAvg whose batches are drawn without replacement: no 1/E_k."""
    return ISFedAvg(
        step_size=step_size,
        num_active=2,
        agents=Uniform(),
        examples=Uniform(),
        agent_design=HartleyRao(),
        example_design=HartleyRao(),
        divide_by_steps=False,
    )


def test_the_papers_fedavg_draws_batches_with_replacement_and_does_not_divide():
    fedavg, fair = (FedAvg(step_size=0.1, num_active=2, divide_by_steps=d) for d in (False, True))
    for algorithm in (fedavg, fair):
        assert algorithm.agents.equal
        assert algorithm.examples.equal
        assert algorithm.agent_design == HartleyRao()
        assert algorithm.example_design == WithReplacement()
    assert (fedavg.divide_by_steps, fair.divide_by_steps) == (False, True)
    assert (fedavg.name, fair.name) == ("FedAvg", "FedAvg with 1/E_k")
    dynamic = DynamicFedAvg(step_size=0.1, num_active=2)
    assert dynamic.divide_by_steps
    assert dynamic.example_design == HartleyRao()


def test_with_one_local_step_dynamic_fedavg_is_fedavg_on_the_same_draws():
    one = simulate(make_problem(), DynamicFedAvg(step_size=0.02, num_active=2), **RUN)
    other = simulate(make_problem(), without_replacement(step_size=0.02), **RUN)
    np.testing.assert_array_equal(one.msd, other.msd)
    np.testing.assert_array_equal(one.params, other.params)


def test_with_more_local_steps_it_is_not():
    problem = make_problem(local_steps=[1, 2, 3, 4])
    one = simulate(problem, DynamicFedAvg(step_size=0.02, num_active=2), **RUN)
    other = simulate(problem, without_replacement(step_size=0.02), **RUN)
    assert np.abs(one.params - other.params).min() > 1e-4


@pytest.mark.parametrize("engine", ["kernel", "objects"])
def test_the_division_by_equal_steps_is_a_smaller_step_size(engine):
    problem = make_problem(local_steps=4)  # a power of two: the step is the same to the last bit
    plain = FedAvg(step_size=0.01, num_active=2)
    fair = FedAvg(step_size=0.04, num_active=2, divide_by_steps=True)
    one, other = (simulate(problem, a, engine=engine, **RUN) for a in (plain, fair))
    np.testing.assert_array_equal(one.msd, other.msd)


def test_the_cost_is_counted():
    problem = make_problem(local_steps=[1, 2, 3, 4])
    everyone = FedAvg(step_size=0.001, num_active=4)
    history = simulate(problem, everyone, rounds=10, repetitions=2)
    assert history.gradients.tolist() == [10 * (1 * 2 + 2 * 3 + 3 * 3 + 4 * 1)] * 2
    assert history.uploads.tolist() == [40, 40]


@pytest.mark.parametrize(("step_size", "curvature"), [(0.05, 1.0), (0.2, 1.0), (0.1, 3.0)])
def test_tracking_error_of_a_drifting_optimum(step_size, curvature):
    """P_i(w) = r (w - w_i^o)^2 without noise: steady msd = a^2 sigma_q^2 / (1 - a^2)."""
    x = np.sqrt(curvature) * np.ones((1, 1))
    problem = Problem(FederatedData.from_agents([(x, np.zeros(1))] * 3), LeastSquares())
    algorithm = DynamicFedAvg(step_size=step_size, num_active=3, drift=0.3)
    history = simulate(problem, algorithm, rounds=2000, repetitions=40)
    a = 1.0 - 2.0 * step_size * curvature
    steady = history.steady(share=0.9)
    assert abs(steady.msd - a**2 * 0.3**2 / (1.0 - a**2)) < 4 * steady.stderr
    assert steady.stderr < 0.03 * steady.msd


def test_without_drift_the_optimum_stays():
    moving, still = (DynamicFedAvg(step_size=0.02, num_active=2, drift=d) for d in (1e-300, 0.0))
    one, other = (simulate(make_problem(), a, **RUN) for a in (moving, still))
    np.testing.assert_allclose(one.msd, other.msd, rtol=1e-12)


def test_by_size_it_follows_a_drift_too():
    """With sizes that are equal the numbers are those of equal weights."""
    problem = PAPER.replace(num_agents=6, num_examples=12).make()
    one, other = (
        simulate(
            problem,
            DynamicFedAvg(step_size=0.02, num_active=2, drift=0.1, client_weights=weights),
            rounds=50,
        )
        for weights in ("uniform", "size")
    )
    np.testing.assert_allclose(one.msd, other.msd, rtol=1e-9)
