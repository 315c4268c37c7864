"""FedAvg, Dynamic FedAvg and ISFedAvg with all examples in every local step."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from isfed import (
    Clock,
    Current,
    DynamicFedAvg,
    FedAvg,
    FederatedData,
    HartleyRao,
    ISFedAvg,
    LeastSquares,
    Logistic,
    Memory,
    Oracle,
    Problem,
    Running,
    Score,
    Uniform,
    WithReplacement,
    certify,
    simulate,
    stable_step_size,
)
from isfed.methods.method_wrappers import Scheduled
from isfed.methods.over_network import check_for_network
from isfed.theory.round_variance import gradient_variance

ENGINES = ("kernel", "agents", "objects")
NAMES = ("telemetry", "msd", "params", "agent_prob", "example_prob", "gradients", "uploads")
SIZES = (4, 9, 1, 6, 17)
SOME: dict[str, Any] = {"step_size": 0.03, "num_active": 3, "full_batch": True}
ALL: dict[str, Any] = {"step_size": 0.03, "num_active": len(SIZES), "full_batch": True}


def make_problem(*, loss: Any = None, **work: Any) -> Problem:
    rng = np.random.default_rng(5)
    agents = [(rng.standard_normal((n, 3)), np.sign(rng.standard_normal(n))) for n in SIZES]
    work = {"local_steps": 1, "batch_size": 1} | work
    return Problem(FederatedData.from_agents(agents), loss or LeastSquares(0.01), **work)


def descent(problem: Problem, share: np.ndarray, *, step_size: float, rounds: int) -> np.ndarray:
    """w <- w - mu sum_k c_k grad P_k(w), by the letter."""
    model = np.zeros(problem.num_params)
    for _ in range(rounds):
        gradient = np.zeros_like(model)
        for k in range(problem.num_agents):
            x, y = problem.data.agent(k)
            gradient += share[k] * problem.loss.gradient(model, x, y, np.ones(len(y)))[0]
        model = model - step_size * gradient
    return model


UNIFORM = np.full(len(SIZES), 1.0 / len(SIZES))
BY_SIZE = np.array(SIZES) / sum(SIZES)
DESCENTS = {
    "FedAvg": (FedAvg(**ALL), UNIFORM),
    "FedAvg by size": (FedAvg(**ALL, client_weights="size"), BY_SIZE),
    "Dynamic": (DynamicFedAvg(**ALL), UNIFORM),
    "Dynamic by size": (DynamicFedAvg(**ALL, client_weights="size"), BY_SIZE),
    "memory": (ISFedAvg(**ALL), UNIFORM),
    "oracle": (ISFedAvg(**ALL, agents=Oracle(), examples=Oracle()), UNIFORM),
    "ISFedAvg by size": (ISFedAvg(**ALL, agents=Uniform(), client_weights="size"), BY_SIZE),
    "change": (ISFedAvg(**ALL, weighting="change"), UNIFORM),
    "difference": (ISFedAvg(**ALL, correction="difference"), UNIFORM),
    "drift": (ISFedAvg(**ALL, correction="drift"), UNIFORM),
}


@pytest.mark.parametrize("loss", [LeastSquares(0.01), Logistic(0.01)])
@pytest.mark.parametrize("name", DESCENTS)
def test_with_everybody_and_one_step_it_is_gradient_descent(name, loss):
    algorithm, share = DESCENTS[name]
    problem = make_problem(loss=loss)
    found = simulate(problem, algorithm, rounds=25, repetitions=2)
    exact = descent(problem, share, step_size=0.03, rounds=25)
    np.testing.assert_allclose(found.params, np.tile(exact, (2, 1)), rtol=1e-11, atol=1e-13)
    assert found.gradients.tolist() == [25 * sum(SIZES)] * 2


CASES: dict[str, Any] = {
    "FedAvg": FedAvg(**SOME),
    "Dynamic, drift": DynamicFedAvg(**SOME, drift=0.1),
    "memory": ISFedAvg(**SOME),
    "running": ISFedAvg(**SOME, agents=Running()),
    "current": ISFedAvg(**SOME, agents=Current()),
    "oracle": ISFedAvg(**SOME, agents=Oracle()),
    "second moment": ISFedAvg(**SOME, agents=Memory(score=Score.SECOND_MOMENT)),
    "agents twice": ISFedAvg(**SOME, agent_design=WithReplacement()),
    "change": ISFedAvg(**SOME, weighting="change"),
    "difference": ISFedAvg(**SOME, correction="difference"),
    "drift": ISFedAvg(**SOME, correction="drift", agents=Memory()),
}
WORK: dict[str, Any] = {"local_steps": [1, 2, 3, 4, 2], "batch_size": [2, 3, 1, 1, 16]}


@pytest.mark.parametrize("name", CASES)
def test_all_engines_give_the_same_bits(name):
    problem = make_problem(**WORK)
    kernel, *others = (
        simulate(problem, CASES[name], rounds=30, repetitions=2, engine=engine)
        for engine in ENGINES
    )
    for other, column in ((o, c) for o in others for c in NAMES):
        np.testing.assert_array_equal(getattr(kernel, column), getattr(other, column), column)
    np.testing.assert_array_equal(kernel.ledgers, others[0].ledgers)


@pytest.mark.parametrize("name", CASES)
def test_it_is_a_batch_of_all_examples_without_replacement(name):
    whole = make_problem(**WORK | {"batch_size": SIZES})
    drawn = replace(CASES[name], full_batch=False, example_design=HartleyRao())
    found = simulate(make_problem(**WORK), CASES[name], rounds=30, repetitions=2)
    other = simulate(whole, drawn, rounds=30, repetitions=2)
    # The drawn examples are added up in another order; nothing else differs.
    for column in ("msd", "params", "agent_prob", "telemetry"):
        one, two = getattr(found, column), getattr(other, column)
        np.testing.assert_allclose(one, two, rtol=1e-5 if column == "telemetry" else 1e-9)
    for column in ("example_prob", "gradients", "uploads", "ledgers"):
        np.testing.assert_array_equal(getattr(found, column), getattr(other, column))


def test_the_problems_batches_do_not_matter():
    one, two = (
        simulate(make_problem(batch_size=b), ISFedAvg(**SOME), rounds=20) for b in (1, SIZES)
    )
    np.testing.assert_array_equal(one.params, two.params)
    np.testing.assert_array_equal(one.telemetry, two.telemetry)


def test_a_schedule_around_it_and_a_clock_change_nothing_about_it():
    plain = simulate(make_problem(**WORK), ISFedAvg(**SOME), rounds=10, clock=Clock())
    around = Scheduled(ISFedAvg(**SOME), lambda _: SOME["step_size"])
    found = simulate(make_problem(**WORK), around, rounds=10)
    np.testing.assert_array_equal(plain.params, found.params)


def test_the_theory_knows_that_no_example_is_drawn():
    problem, whole = make_problem(**WORK), make_problem(**WORK | {"batch_size": SIZES})
    algorithm = ISFedAvg(step_size="auto", num_active=3, full_batch=True)
    drawn = replace(algorithm, full_batch=False)
    assert stable_step_size(problem, algorithm) == stable_step_size(whole, drawn)
    steps = (
        simulate(on, how, rounds=2).step_size for on, how in ((problem, algorithm), (whole, drawn))
    )
    assert len(set(steps)) == 1
    variance = gradient_variance(problem, algorithm)
    assert variance.agents.sum() > 0.0
    np.testing.assert_allclose(variance.examples, 0.0, atol=1e-25)
    for correction in (None, "drift"):
        found = certify(problem, replace(algorithm, correction=correction), rounds=5)
        assert found.exact
        assert found.unbiased


def test_examples_are_uniform_and_the_name_says_full_batches():
    algorithm = ISFedAvg(**SOME, examples=Oracle(), example_design=WithReplacement())
    assert algorithm.examples.equal
    assert algorithm.name == "ISFedAvg, memory agents, full batches"
    assert FedAvg(**SOME).name == "FedAvg"


def test_a_network_refuses_it_and_says_what_to_do():
    check_for_network(ISFedAvg(**SOME), 5)  # an order says so


@pytest.mark.parametrize("make", [FedAvg, DynamicFedAvg, ISFedAvg])
def test_only_true_and_false_are_taken(make):
    with pytest.raises((ValueError, TypeError), match="full_batch="):
        make(**SOME | {"full_batch": 1})
