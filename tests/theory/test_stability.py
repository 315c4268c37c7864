"""Step-size limits against closed forms, and runs on either side of them."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from isfed import (
    EQUAL,
    PAPER,
    Current,
    DivergenceError,
    FedAvg,
    FederatedData,
    ISFedAvg,
    LeastSquares,
    Logistic,
    Memory,
    NoOptimumError,
    Oracle,
    Problem,
    Running,
    Softmax,
    Uniform,
    simulate,
)
from isfed.theory.probabilities import choices_at
from isfed.theory.stable_step_size import (
    SHARE_OF_LIMIT,
    GrowthWarning,
    explain_divergence,
    risk_curvature,
    stable_step_size,
    step_limits,
    with_step_size,
)

POLICIES = [Uniform(), Oracle(), Current(), Running(), Memory()]


def isfedavg(policy, **choices):
    return ISFedAvg(
        **({"step_size": "auto", "num_active": 5} | choices), agents=policy, examples=policy
    )


@pytest.mark.parametrize("policy", [Uniform(), Oracle(floor=0.2)])
def test_limits_of_a_scalar_problem(policy):
    """E[h] and E[h^2] written out, draws independent: L agents, B_k examples, E_k steps."""
    rng = np.random.default_rng(0)
    data = FederatedData.from_agents(
        [(rng.standard_normal((n, 1)), rng.standard_normal(n)) for n in (3, 5, 4)]
    )
    problem = Problem(data, LeastSquares(0.3), local_steps=np.array([1, 2, 3]), batch_size=2)
    algorithm = isfedavg(policy, num_active=2)
    chosen = choices_at(problem, algorithm)
    first, second, worst = 0.0, 0.0, 0.0
    for k in range(3):
        h = 2.0 * data.agent(k)[0][:, 0] ** 2 + 0.6
        p, q = chosen.agents[k] / 2, chosen.of_agent(problem, k) / 2
        steps = int(problem.local_steps[k])
        one = np.sum(h**2 / q) / h.size**2
        of_agent = h.mean() ** 2 + (one - h.mean() ** 2) / (2 * steps)
        first += h.mean() / 3
        second += of_agent / (9 * p)
        worst = max(worst, float(np.max(h / (h.size * q)) / (3 * p * steps)))
    second = first**2 + (second - first**2) / 2
    limits = step_limits(problem, algorithm, chosen)
    assert limits.mean == pytest.approx(2 / first)
    assert limits.mean_square == pytest.approx(2 * first / second)
    assert limits.every_draw == pytest.approx(2 / worst)


def test_many_features_give_the_same_limit(monkeypatch):
    rng = np.random.default_rng(1)
    data = FederatedData.from_agents(
        [(rng.standard_normal((6, 5)), rng.standard_normal(6)) for _ in range(4)]
    )
    problem = Problem(data, LeastSquares(0.1), batch_size=2)
    algorithm = isfedavg(Memory(), num_active=2)
    small = step_limits(problem, algorithm)
    monkeypatch.setattr("isfed.theory.stable_step_size.SMALL", 1)
    large = step_limits(problem, algorithm)
    assert large.mean_square == pytest.approx(small.mean_square, rel=2e-3)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_auto_is_stable_and_four_limits_are_not(policy):
    problem = PAPER.replace(num_agents=60, num_examples=30).make()
    algorithm = isfedavg(policy)
    history = simulate(problem, algorithm, rounds=300, repetitions=5)
    limit = step_limits(problem, algorithm).mean_square
    assert 0.0 < history.step_size <= 2 * SHARE_OF_LIMIT * limit * (1 + 1e-12)
    assert history.mean[-100:].mean() < 0.1 * np.sum(problem.optimum**2)
    with pytest.raises(DivergenceError) as caught:
        simulate(problem, replace(algorithm, step_size=8 * limit), rounds=3000, repetitions=2)
    assert "exceeds" in str(caught.value)


@pytest.mark.parametrize("loss", [Logistic(0.01), Softmax(ridge=0.01, num_classes=3)])
def test_auto_knows_every_loss(loss):
    rng = np.random.default_rng(2)
    agents = []
    for _ in range(8):
        x = 3.0 * rng.standard_normal((9, 4))
        y = np.sign(x[:, 0] + 0.1) if isinstance(loss, Logistic) else np.arange(9.0) % 3
        agents.append((x, y))
    problem = Problem(FederatedData.from_agents(agents), loss, batch_size=2, local_steps=2)
    history = simulate(problem, isfedavg(Memory(), num_active=2), rounds=400, repetitions=3)
    assert problem.risk(history.params[0]) < problem.risk(np.zeros(problem.num_params))


class Own:
    """A loss of which nothing is known but its gradient."""

    def gradient(self, params, x, y, weight):
        return LeastSquares(0.1).gradient(params, x, y, weight)

    def num_params(self, num_features):
        return num_features

    def check_targets(self, targets):
        pass


def test_auto_finds_the_curvature_of_a_loss_of_ones_own():
    problem = EQUAL.replace(num_agents=10, num_examples=10).make()
    own = replace(problem, loss=Own())
    x, weight = problem.data.features, problem.data.row_weights()
    hessian = 2 * (x * weight[:, None]).T @ x + 0.2 * np.eye(2)
    largest = np.linalg.eigvalsh(hessian)[-1]
    assert risk_curvature(own, np.ones(2)) == pytest.approx(largest, rel=0.02)
    assert stable_step_size(own, isfedavg(Memory())) == pytest.approx(0.1 / largest, rel=0.02)
    with pytest.raises(ValueError, match="Own has no curvature"):
        step_limits(own, isfedavg(Memory()))
    assert "step_size='auto'" in explain_divergence(own, isfedavg(Memory(), step_size=9.0))


def test_auto_gives_the_same_on_both_engines():
    problem = EQUAL.replace(num_agents=10, num_examples=10).make()
    algorithm = FedAvg(step_size="auto", num_active=3)
    one, other = (
        simulate(problem, algorithm, rounds=5, engine=engine) for engine in ("kernel", "objects")
    )
    assert one.step_size == other.step_size
    assert np.array_equal(one.msd, other.msd)
    assert with_step_size(problem, replace(algorithm, step_size=0.5)).step_size == 0.5


def test_a_divergence_says_which_limit_was_exceeded():
    problem = PAPER.replace(num_agents=30, num_examples=20).make()
    algorithm = isfedavg(Oracle())
    limits = step_limits(problem, algorithm)
    said = {
        step: explain_divergence(problem, replace(algorithm, step_size=step))
        for step in (
            2 * limits.mean,
            (limits.mean + limits.mean_square) / 2,
            limits.mean_square / 2,
        )
    }
    for words, message in zip(
        ("gradient descent with all data", "mean-square limit of this sampling", "larger floor"),
        said.values(),
        strict=True,
    ):
        assert words in message


def test_no_curvature_has_no_limit():
    data = FederatedData.from_agents([(np.zeros((3, 2)), np.ones(3))])
    problem = Problem(data, LeastSquares())
    with pytest.raises(ValueError, match="no curvature at all"):
        step_limits(problem, isfedavg(Uniform(), num_active=1))
    with pytest.raises(ValueError, match="no curvature at all"):
        simulate(problem, isfedavg(Uniform(), num_active=1), rounds=2)


def test_auto_needs_data():
    algorithm = isfedavg(Memory())
    with pytest.raises(ValueError, match="step_size='auto' needs the data"):
        algorithm.rules(3)
    with pytest.raises(ValueError, match="must be a positive number or 'auto'"):
        isfedavg(Memory(), step_size="best")


@pytest.mark.parametrize("engine", ["kernel", "objects"])
def test_a_run_that_starts_to_diverge_says_so(engine):
    """It grows, but has not overflowed when the rounds end."""
    problem = PAPER.replace(num_agents=30, num_examples=20).make()
    algorithm = isfedavg(Uniform())
    step = 3 * step_limits(problem, algorithm).mean_square
    growing = replace(algorithm, step_size=step)
    with pytest.warns(GrowthWarning, match="is diverging, its msd has grown .* exceeds"):
        simulate(problem, growing, rounds=60, repetitions=3, engine=engine)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate(problem, algorithm, rounds=60, repetitions=3, engine=engine)
        start = problem.optimum  # from there the msd grows to its steady state, as it should
        simulate(problem, algorithm, rounds=60, repetitions=3, engine=engine, initial=start)


def test_a_step_size_is_found_without_an_optimum():
    """Separable classes without ridge: the limits at the start are all there is."""
    data = FederatedData.from_agents([([[1.0], [2.0]], [1.0, 1.0]), ([[-1.0]], [-1.0])])
    problem = Problem(data, Logistic(ridge=0.0))
    algorithm = ISFedAvg(step_size="auto", num_active=1)
    with pytest.raises(NoOptimumError):
        _ = problem.optimum
    at_start = step_limits(problem, algorithm, choices_at(problem, algorithm, np.zeros(1)))
    assert stable_step_size(problem, algorithm) == 0.25 * at_start.mean_square
