"""What a diagnosis says, on problems where the answer is known."""

import json

import numpy as np
import pytest

from isfed import (
    OUTLIERS,
    PAPER,
    FederatedData,
    ISFedAvg,
    LeastSquares,
    Memory,
    Oracle,
    Problem,
    Uniform,
    diagnose,
    simulate,
)
from isfed.theory import gradient_variance
from isfed.theory.diagnosis import effective_size
from isfed.theory.stable_step_size import step_limits


def alike(num_agents=6):
    """Every gradient at w^o = 0 has the same length, so all probabilities are equal."""
    x = np.array([[1.0], [1.0]])
    return Problem(
        FederatedData.from_agents([(x, np.array([1.0, -1.0]))] * num_agents), LeastSquares(0.1)
    )


def test_it_would_not_help_where_all_gradients_are_alike():
    found = diagnose(alike(), num_active=2)
    assert not found.helps
    assert found.recommendation().startswith("It would not help you")
    for option in found.options.values():
        assert option.gain_db == pytest.approx(0.0, abs=1e-9)
        assert option.agents_size == pytest.approx(2.0)
        assert option.examples_size == pytest.approx(1.0)


def test_numbers_are_those_of_the_parts():
    problem = PAPER.replace(num_agents=40, num_examples=20).make()
    found = diagnose(problem, num_active=4)
    sides = {"uniform": (Uniform(), Uniform()), "agents": (Memory(), Uniform()),
             "examples": (Uniform(), Memory()), "both": (Memory(), Memory())}  # fmt: skip
    for name, (agents, examples) in sides.items():
        algorithm = ISFedAvg(step_size=1.0, num_active=4, agents=agents, examples=examples)
        option = found.options[name]
        assert option.variance == pytest.approx(gradient_variance(problem, algorithm).total)
        assert option.step_limit == pytest.approx(step_limits(problem, algorithm).mean_square)
    uniform = found.options["uniform"]
    both = found.options["both"]
    assert both.variance_ratio == pytest.approx(uniform.variance / both.variance)
    assert found.best.sampling == "both"
    assert "agents and examples by importance" in found.recommendation()


def test_only_agents_are_recommended_where_examples_gain_nothing():
    rng = np.random.default_rng(0)
    agents = []
    for scale in (0.1, 0.1, 0.1, 0.1, 10.0):
        noise = scale * np.where(np.arange(10) % 2, 1.0, -1.0)  # one length within an agent
        agents.append((np.where(rng.random((10, 1)) < 0.5, 1.0, -1.0), noise))
    found = diagnose(Problem(FederatedData.from_agents(agents), LeastSquares(0.01)), num_active=1)
    assert found.best.sampling == "agents"
    assert found.recommendation().startswith("Sample agents by importance")
    assert found.top_agents[0][0] == 4


def test_the_gain_is_what_a_run_shows():
    problem = OUTLIERS.replace(num_agents=50, num_examples=30, noisy_share=0.04).make()
    found = diagnose(problem, num_active=4)
    steady = {}
    for name, policy in (("uniform", Uniform()), ("both", Memory())):
        algorithm = ISFedAvg(step_size=0.005, num_active=4, agents=policy, examples=policy)
        history = simulate(problem, algorithm, rounds=6000, repetitions=20, initial=problem.optimum)
        steady[name] = history.steady(share=0.75)
    gain = steady["uniform"].db - steady["both"].db
    assert abs(gain - found.options["both"].gain_db) < 1.5


def test_no_noise_left_is_said_so():
    """All gradients of one sign: importance sampling of the examples gives the exact gradient."""
    data = FederatedData.from_agents([([[1.0], [1.0], [1.0]], [1.0, 2.0, 5.0])])
    found = diagnose(
        Problem(data, LeastSquares()), num_active=1, importance=Oracle(), params=np.zeros(1)
    )
    assert found.best.gain_db > 100.0
    assert "examples by importance" in found.recommendation()
    json.loads(json.dumps(found.as_dict()), parse_constant=lambda name: pytest.fail(name))


def test_noise_where_there_was_none_is_said_so():
    """Uniform sampling has no noise here, importance sampling has."""
    data = FederatedData.from_agents([([[1.0], [1.0]], [1.0, 1.0]), ([[1.0], [1.0]], [3.0, -1.0])])
    problem = Problem(data, LeastSquares(), batch_size=2)
    found = diagnose(problem, num_active=1, params=np.zeros(1))
    assert not found.helps
    assert "would not help" in found.recommendation()


def test_effective_size_of_equal_chances_is_the_number_drawn():
    assert effective_size(np.full(10, 0.3)) == pytest.approx(3.0)
    assert effective_size(np.array([0.9, 0.1])) == pytest.approx(4 / (1 / 0.9 + 10))


def test_a_problem_without_constants_is_diagnosed_and_says_what_is_missing():
    data = FederatedData.from_agents(
        [(np.ones((3, 2)), np.arange(3.0)), (np.ones((3, 2)), np.ones(3))]
    )
    found = diagnose(Problem(data, LeastSquares(0.0)), num_active=1)
    # The direction without curvature has no noise and never moves: the gain leaves it out.
    assert found.weighted
    assert "not strongly convex" in str(found.constants["nu"])


def test_more_agents_than_there_are_is_refused():
    with pytest.raises(ValueError, match="num_active=7 exceeds num_agents=6"):
        diagnose(alike(), num_active=7)


def table(y, *, num_agents=4, seed=0):
    x = np.random.default_rng(seed).standard_normal((len(y), 2))
    edges = np.linspace(0, len(y), num_agents + 1).astype(int)
    return Problem(FederatedData(x, np.asarray(y, float), edges), LeastSquares(1e-3), batch_size=2)


def test_degenerate_cases_say_so():
    noise = np.random.default_rng(1).standard_normal(40)
    one = diagnose(table(noise, num_agents=1), num_active=1, theory=False)
    assert one.remarks == ["There is only one agent: only its examples can be chosen."]
    assert one.options["agents"].gain_db == pytest.approx(0.0)
    everybody = diagnose(table(noise), num_active=4, theory=False)
    assert "All agents take part" in everybody.remarks[0]
    constant = diagnose(table(np.full(40, 4.0)), num_active=1, theory=False)
    assert not constant.helps
    assert constant.as_dict()["best"] == "uniform"
    expected = "It would not help you: the target is always 4, so there is nothing to learn."
    assert constant.recommendation() == expected


def test_targets_that_are_fitted_leave_no_noise():
    problem = table(np.zeros(40))
    x = problem.data.features
    exact = FederatedData(x, x @ [1.0, -2.0], problem.data.offsets)
    found = diagnose(Problem(exact, LeastSquares(0.0), batch_size=2), num_active=1, theory=False)
    assert "the model fits every example" in found.recommendation()


def test_alike_agents_are_said_to_be_alike():
    x = np.random.default_rng(2).standard_normal((10, 2))
    y = np.random.default_rng(3).standard_normal(10)
    same = FederatedData(np.tile(x, (5, 1)), np.tile(y, 5), np.arange(0, 60, 10))
    found = diagnose(Problem(same, LeastSquares(1e-3), batch_size=2), num_active=2, theory=False)
    assert any(line.startswith("The agents are alike: none of") for line in found.remarks)


def test_agents_that_differ_in_noise_alone_are_not_said_to_be_alike():
    x = np.tile(np.repeat([1.0, -1.0], 2), 12)[:, None]
    noise = np.where(np.arange(48) < 8, 5.0, 0.2) * np.tile([1.0, -1.0], 24)  # no agent pulls
    data = FederatedData(x, 2.0 * x[:, 0] + noise, np.arange(0, 49, 4))
    found = diagnose(Problem(data, LeastSquares(0.0), batch_size=1), num_active=2, theory=False)
    assert found.options["agents"].gain_db > 1.0
    (remark,) = found.remarks
    assert remark.startswith("The agents agree on the model (none of the noise")


def test_nobody_is_named_who_is_drawn_no_oftener():
    problem = table(np.random.default_rng(1).standard_normal(40))
    whole = Problem(problem.data, problem.loss, batch_size=10)
    assert diagnose(whole, num_active=4, theory=False).top_examples == []
