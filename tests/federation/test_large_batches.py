"""Batches of more examples than an agent has: with replacement, and only then."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from isfed import (
    SCAFFOLD,
    Deville,
    DynamicFedAvg,
    FedAvg,
    FederatedData,
    FedProx,
    HartleyRao,
    ISFedAvg,
    LeastSquares,
    Memory,
    Poisson,
    Problem,
    Running,
    Uniform,
    WithReplacement,
    certify,
    simulate,
    stable_step_size,
)
from isfed.theory.probabilities import choices_at
from isfed.theory.round_variance import gradient_variance

SIZES, BATCHES = (2, 5, 1, 3), (5, 2, 4, 3)
SOME: dict[str, Any] = {"step_size": 0.02, "num_active": 2}
NAMES = ("telemetry", "msd", "params", "gradients", "uploads", "ledgers", "example_prob")


def make_problem(sizes: Any = SIZES, batches: Any = BATCHES, local_steps: Any = 2) -> Problem:
    rng = np.random.default_rng(8)
    agents = [(rng.standard_normal((n, 2)), rng.standard_normal(n)) for n in sizes]
    return Problem(FederatedData.from_agents(agents), LeastSquares(0.01), local_steps, batches)


def replaced(**choices: Any) -> ISFedAvg:
    return ISFedAvg(**SOME, example_design=WithReplacement(), **choices)


KERNEL: dict[str, Any] = {
    "FedAvg": FedAvg(**SOME),
    "memory": replaced(),
    "running": replaced(agents=Running(), examples=Running()),
    "drift": replaced(correction="drift"),
}
AGENTS: dict[str, Any] = {"FedProx": FedProx(**SOME), "SCAFFOLD": SCAFFOLD(**SOME)}


@pytest.mark.parametrize("name", [*KERNEL, *AGENTS])
def test_all_engines_give_the_same_bits(name):
    engines = ("kernel", "agents", "objects") if name in KERNEL else ("agents", "objects")
    algorithm = (KERNEL | AGENTS)[name]
    first, *others = (
        simulate(make_problem(), algorithm, rounds=30, repetitions=2, engine=engine)
        for engine in engines
    )
    assert np.isfinite(first.params).all()
    for other, column in product(others, NAMES):
        np.testing.assert_array_equal(getattr(first, column), getattr(other, column), column)


@pytest.mark.parametrize("examples", [Uniform(), Memory()])
def test_all_outcomes_together_are_unbiased(examples):
    problem = make_problem((2, 3), (4, 4), 1)
    found = certify(problem, replaced(examples=examples), rounds=6)
    assert found.exact
    assert found.unbiased


def test_the_variance_is_that_of_all_batches():
    problem = make_problem((2, 3), (4, 5), 1)
    algorithm = replace(FedAvg(**SOME), divide_by_steps=True)
    found = gradient_variance(problem, algorithm)
    expected = np.zeros(2)
    for k, (size, batch) in enumerate(((2, 4), (3, 5))):
        x, y = problem.data.agent(k)
        gradients = np.array(
            [problem.loss.gradient(problem.optimum, x[[n]], y[[n]], np.ones(1))[0]
             for n in range(size)]
        )  # fmt: skip
        means = [
            gradients[list(drawn)].mean(axis=0) for drawn in product(range(size), repeat=batch)
        ]
        expected += np.var(means, axis=0) / 4.0  # both agents are heard, each with weight 1/2
    np.testing.assert_allclose(found.examples, expected, rtol=1e-12)


@pytest.mark.parametrize("design", [Deville(), HartleyRao(), Poisson()])
@pytest.mark.parametrize("engine", ["kernel", "agents", "objects"])
def test_without_replacement_they_are_refused(engine, design):
    if engine != "objects" and isinstance(design, Poisson):
        engine = "auto"
    algorithm = ISFedAvg(**SOME, example_design=design)
    expected = (
        "batch_size=5 of agent 0 exceeds its num_examples=2, and "
        rf"{type(design).__name__} draws without replacement; use a smaller batch_size, "
        r"example_design=WithReplacement\(\) or full_batch=True"
    )
    with pytest.raises(ValueError, match=f"^{expected}$"):
        simulate(make_problem(), algorithm, rounds=1, engine=engine)
    for asked in (choices_at, stable_step_size, gradient_variance):
        with pytest.raises(ValueError, match=f"^{expected}$"):
            asked(make_problem(), algorithm)


def test_so_are_those_of_dynamic_fedavg_by_size():
    for weights in ("uniform", "size"):
        algorithm = DynamicFedAvg(**SOME, client_weights=weights)
        with pytest.raises(ValueError, match="batch_size=5 of agent 0 exceeds its num_examples=2"):
            simulate(make_problem(), algorithm, rounds=1)


def test_full_batches_do_not_ask_for_the_batch_size():
    for algorithm in (ISFedAvg(**SOME, full_batch=True), FedProx(**SOME, full_batch=True)):
        one, two = (
            simulate(make_problem(batches=batch), algorithm, rounds=5) for batch in (9, BATCHES)
        )
        np.testing.assert_array_equal(one.params, two.params)
