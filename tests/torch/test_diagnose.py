"""The diagnosis of a network, against rounds that were really run."""

# pyright: reportMissingImports=false

import numpy as np
import pytest
import torch
from torch import nn

import isfed
from isfed import PAPER, FedAvg, FederatedData, HartleyRao, Problem
from isfed.torch import Network, diagnose
from isfed.torch.diagnose import _round_variance, _spread

RNG = np.random.default_rng(1)


def make_problem(scales, shift=0.0, local_steps=1, batch_size=4):
    """Agents whose rows are of different size, and whose classes differ by `shift`."""
    agents = []
    for k, scale in enumerate(scales):
        x = scale * (RNG.standard_normal((40, 3)) + shift * np.eye(3)[k % 3])
        agents.append((x, np.full(40, k % 3) if shift else RNG.integers(0, 3, 40)))
    network = Network(lambda: nn.Linear(3, 3).double(), score="exact")
    return Problem(FederatedData.from_agents(agents), network, local_steps, batch_size)


def test_the_variance_is_that_of_rounds():
    problem = make_problem(np.linspace(0.5, 2.0, 8))
    found = diagnose(problem, num_active=3, step_size=0.1, draws=4000)
    algorithm = FedAvg(step_size=1e-3, num_active=3)
    agents = problem.loss.make_agents(problem, algorithm.rules(8), seed=5, repetition=0)
    params = problem.loss.initial()
    mean = agents.gradients(np.arange(8), params).mean(axis=0)
    squares = []
    for i in range(3000):
        state = algorithm.round(algorithm.start(agents, params), agents, i)
        apart = (params - state.params) / 1e-3 - mean
        squares.append(apart @ apart)
    measured = np.mean(squares) / (mean @ mean)
    error = np.std(squares) / np.sqrt(3000) / (mean @ mean)
    # The noise of the batches is from one pair per agent: a third of it may be chance.
    assert found.variance["uniform"] == pytest.approx(measured, rel=0.35, abs=5 * error)
    assert found.drift == pytest.approx(0.0, abs=0.05)  # one local step


def test_uniform_draws_do_not_gain_by_the_order_of_the_agents_and_a_spread_does():
    kinds = np.repeat(np.eye(4), 5, axis=0)  # class by class, as partitions deal them
    vectors = kinds + 0.1 * RNG.standard_normal(kinds.shape)
    count, num, draws = len(vectors), 4, 3000
    common = (np.ones(count), vectors, np.zeros(count), num, draws, np.random.default_rng(1))
    found, error = _round_variance(HartleyRao(), *common)
    apart = ((vectors - vectors.mean(axis=0)) ** 2).sum() / (count - 1)
    assert found == pytest.approx((1.0 - num / count) / num * apart, abs=4 * error)
    mixed = np.random.default_rng(2).permutation(count)  # a spread finds the kinds in any order
    spread, _ = _round_variance(_spread(vectors[mixed]), common[0], vectors[mixed], *common[2:])
    assert spread < 0.2 * found


def test_the_order_of_the_agents_is_nothing_to_uniform_draws():
    one_class = make_problem(
        np.ones(9), 2.0, local_steps=10, batch_size=40
    )  # classes 0, 1, 2, 0, 1, ...
    parts = [one_class.data.agent(k) for k in (0, 3, 6, 1, 4, 7, 2, 5, 8)]
    ordered = Problem(FederatedData.from_agents(parts), one_class.loss, 10, 40)
    found = [diagnose(p, num_active=3, step_size=0.1, draws=1000) for p in (one_class, ordered)]
    apart = found[0].variance["uniform"] - found[1].variance["uniform"]
    one, two = (f.stderr["uniform"] for f in found)
    error = np.hypot(one, two)
    assert abs(apart) < 4 * error + 0.02 * found[0].variance["uniform"]  # and noise of batches
    assert found[1].variance["spread"] < 0.5 * found[1].variance["uniform"]


def test_it_says_where_each_way_helps():
    alike = diagnose(make_problem(np.ones(10), batch_size=2), num_active=5, step_size=0.01)
    assert alike.choice in ("uniform", "importance of agents and examples")
    loud = make_problem([1.0] * 19 + [30.0])
    found = diagnose(loud, num_active=3, step_size=1e-3)
    assert found.variance["importance"] < 0.3 * found.variance["uniform"]
    one_class = make_problem(np.ones(9), shift=2.0, local_steps=60, batch_size=20)
    drifting = diagnose(one_class, num_active=3, step_size=0.3)
    assert drifting.drift > 0.05
    assert drifting.choice == "difference"
    assert 'alone: importance(..., correction="difference").' in drifting.recommendation()
    assert 'correction="drift" removes it' in drifting.recommendation()
    assert 'correction="drift"' not in alike.recommendation()


def test_the_seed_decides_also_about_dropout():
    data = make_problem(np.ones(4)).data
    make = lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).double()  # noqa: E731
    problem = Problem(data, Network(make), 2, 4)
    found = []
    for caller in range(2):
        torch.manual_seed(caller)
        found.append(diagnose(problem, num_active=2, step_size=0.1, draws=20))
        assert torch.initial_seed() == caller
    assert found[0] == found[1]


def test_what_cannot_be_is_said():
    with pytest.raises(TypeError, match="needs a Network, got LeastSquares"):
        diagnose(PAPER.make(), num_active=3, step_size=0.1)
    with pytest.raises(TypeError, match=r"Network is diagnosed by isfed\.torch\.diagnose"):
        isfed.diagnose(make_problem(np.ones(4)), num_active=2)
    with pytest.raises(ValueError, match="9"):
        diagnose(make_problem(np.ones(4)), num_active=9, step_size=0.1)
    with pytest.raises(ValueError, match="draws=1"):
        diagnose(make_problem(np.ones(4)), num_active=2, step_size=0.1, draws=1)
    data = FederatedData.from_agents([(np.ones((4, 3)), np.zeros((4, 1)))] * 3)
    still = Problem(data, Network(lambda: nn.Linear(3, 1), nn.MSELoss(reduction="none")), 1, 2)
    with pytest.raises(ValueError, match="the mean gradient at this model is 0"):
        diagnose(still, num_active=2, step_size=0.1, params=np.zeros(4))


def test_running_means_are_no_part_of_the_drift():
    """They move by far more than the parameters do, and by chance."""
    found = []
    for tracked in (True, False):
        rng = np.random.default_rng(3)
        agents = [(100.0 * rng.standard_normal((40, 3)), np.full(40, k % 3)) for k in range(6)]
        norm = lambda kept=tracked: nn.BatchNorm1d(3, track_running_stats=kept)  # noqa: E731
        network = Network(lambda norm=norm: nn.Sequential(norm(), nn.Linear(3, 3)).double())
        problem = Problem(FederatedData.from_agents(agents), network, 10, 8)
        found.append(diagnose(problem, num_active=2, step_size=0.5).drift)
    assert found[1] > 0.1
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_it_prints_the_recommendation():
    found = diagnose(make_problem([1.0] * 6), num_active=2, step_size=0.1)
    assert str(found) == found.recommendation()
    assert str(found).startswith("Use ")


def test_an_optimizer_of_the_agents_is_refused():
    problem = make_problem([1.0] * 4)
    heavy = Network(problem.loss.make_module, optimizer=torch.optim.Adam)
    with pytest.raises(ValueError, match=r"plain local steps.*has no optimizer"):
        diagnose(Problem(problem.data, heavy, 1, 4), num_active=2, step_size=0.1)
