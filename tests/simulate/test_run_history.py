"""What a simulation leaves behind: means, standard errors, decibels."""

import warnings

import numpy as np
import pytest
from scipy import signal

from isfed import (
    Current,
    FederatedData,
    History,
    ISFedAvg,
    LeastSquares,
    Memory,
    Problem,
    Regression,
    Uniform,
    simulate,
)
from isfed.simulate import Steady, decibels
from isfed.simulate.run_history import moving_average


def history_of(msd):
    msd = np.asarray(msd, dtype=float)
    nothing = np.empty((len(msd), 0))
    return History(msd, nothing, nothing, nothing, np.zeros(len(msd)), np.zeros(len(msd)))


def test_mean_and_standard_error_are_over_the_repetitions():
    history = history_of([[1.0, 8.0], [2.0, 4.0], [6.0, 0.0]])
    assert (history.repetitions, history.rounds) == (3, 2)
    np.testing.assert_allclose(history.mean, [3.0, 4.0])
    # The sample standard deviation, by n - 1, over the root of n.
    literal = [np.sqrt((4 + 1 + 9) / 2 / 3), np.sqrt((16 + 0 + 16) / 2 / 3)]
    np.testing.assert_allclose(history.stderr, literal)


def test_a_single_repetition_has_no_standard_error():
    history = history_of([[1.0, 2.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(history.stderr).all()
        assert np.isnan(history.steady().stderr)
    assert history.steady(share=1.0).msd == 1.5


@pytest.mark.parametrize(("share", "rounds"), [(1.0, 8), (0.5, 4), (0.25, 2), (0.01, 1)])
def test_steady_is_the_mean_over_the_last_rounds(share, rounds):
    msd = np.array([np.arange(8.0), np.arange(8.0) ** 2])
    steady = history_of(msd).steady(share=share)
    levels = msd[:, -rounds:].mean(axis=1)
    assert steady.rounds == rounds
    assert steady.msd == pytest.approx(levels.mean())
    assert steady.stderr == pytest.approx(abs(levels[0] - levels[1]) / 2)  # of two numbers


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, np.nan])
def test_a_bad_share_is_named(share):
    with pytest.raises(ValueError, match=rf"share={share} must be in \(0, 1\]"):
        history_of([[1.0]]).steady(share=share)


def test_decibels():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        levels = decibels(np.array([1.0, 10.0, 0.001, 0.0]))
    np.testing.assert_allclose(levels, [0.0, 10.0, -30.0, -np.inf])
    assert Steady(0.01, 0.0, 1).db == pytest.approx(-20.0)


def test_the_error_in_decibels_is_the_slope_times_the_error():
    steady = Steady(0.02, 0.0002, 10)
    above, below = decibels(0.0202), decibels(0.0198)
    assert steady.stderr_db == pytest.approx((above - below) / 2, rel=1e-4)  # second order: 1e-4
    assert Steady(0.0, 0.0, 10).stderr_db == 0.0
    assert np.isnan(Steady(np.nan, np.nan, 0).stderr_db)  # not known, and so null in summary.json


@pytest.mark.parametrize("engine", ["kernel", "objects"])
@pytest.mark.parametrize("policy", [Uniform(), Memory()], ids=lambda p: p.name)
def test_a_run_is_recorded(engine, policy):
    recipe = Regression(num_agents=6, num_examples=5, num_features=3, batch_size=(1, 3))
    problem = recipe.make()
    algorithm = ISFedAvg(step_size=0.01, num_active=2, agents=policy, examples=policy)
    history = simulate(problem, algorithm, rounds=25, repetitions=4, engine=engine)
    assert (history.rounds, history.repetitions) == (25, 4)
    assert history.params.shape == (4, 3)
    assert (history.uploads == 2 * 25).all()
    least, most = 2 * 25, 2 * 25 * 5 * 3  # of E_k B_k gradients each
    assert ((history.gradients >= least) & (history.gradients <= most)).all()
    np.testing.assert_allclose(
        np.sum((history.params - problem.optimum) ** 2, axis=1), history.msd[:, -1], rtol=1e-12
    )
    np.testing.assert_allclose(history.agent_prob.sum(axis=1), 1.0, rtol=1e-12)
    each = history.example_prob.reshape(4, 6, 5)
    np.testing.assert_allclose(each.sum(axis=2), 1.0, rtol=1e-12)


def test_current_pays_for_what_it_looks_at():
    """All examples of all agents for the agents' scores, all of an active agent's for its own."""
    rng = np.random.default_rng(0)
    agents = [(rng.standard_normal((n, 2)), rng.standard_normal(n)) for n in (3, 3, 3)]
    problem = Problem(FederatedData.from_agents(agents), LeastSquares(), 2, 1)
    costs = {}
    for name, agent_policy, example_policy in [
        ("neither", Uniform(), Uniform()),
        ("agents", Current(), Uniform()),
        ("examples", Uniform(), Current()),
        ("both", Current(), Current()),
    ]:
        algorithm = ISFedAvg(
            step_size=0.01, num_active=2, agents=agent_policy, examples=example_policy
        )
        costs[name] = simulate(problem, algorithm, rounds=10).gradients[0] / 10
    assert costs == {"neither": 4, "agents": 4 + 9, "examples": 4 + 6, "both": 4 + 9 + 6}


@pytest.mark.parametrize(("option", "value"), [("engine", "kernell"), ("threads", -1)])
def test_unknown_engines_and_impossible_threads_are_refused(option, value):
    problem = Regression(num_agents=3, num_examples=12).make()
    algorithm = ISFedAvg(step_size=0.01, num_active=1)
    with pytest.raises(ValueError, match=f"{option}="):
        simulate(problem, algorithm, rounds=1, **{option: value})


def test_the_moving_average_is_the_filter_that_it_replaces():
    values = np.random.default_rng(0).lognormal(size=(3, 50, 2))
    for rate in (0.01, 0.3, 1.0):
        expected = signal.lfilter([rate], [1.0, rate - 1.0], values, axis=1)
        np.testing.assert_allclose(moving_average(values, rate), expected, rtol=1e-14)
