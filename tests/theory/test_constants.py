"""The paper's constants against the equations written out, and the bound against runs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from isfed import (
    EQUAL,
    PAPER,
    FedAvg,
    FederatedData,
    ISFedAvg,
    LeastSquares,
    Logistic,
    Oracle,
    Poisson,
    Problem,
    Uniform,
    simulate,
    stable_step_size,
)
from isfed.theory import Constants, Rule, TheoryError, gradient_variance, predict
from isfed.theory.probabilities import Choices, choices_at, example_gradients

SMALL = PAPER.replace(num_agents=12, num_examples=20, local_steps=(1, 3), batch_size=(1, 4))


def uniform(step_size=1e-6, num_active=3):
    return ISFedAvg(
        step_size=step_size, num_active=num_active, agents=Uniform(), examples=Uniform()
    )


def literal(problem, algorithm, rule):
    """Eq. (20) to (23) and (30), as they are printed."""
    chosen = choices_at(problem, algorithm)
    K, L = problem.num_agents, algorithm.num_active
    p = chosen.agents / L
    delta = max(2.0 * float(x @ x) + 2.0 * problem.loss.ridge for x in problem.data.features)
    beta_s2 = sigma_s2 = 0.0
    out: dict[str, Any] = {"beta_sk2": [], "sigma_sk2": [], "sigma_qk2": []}
    for k in range(K):
        x, y = problem.data.agent(k)
        E, B, N = int(problem.local_steps[k]), int(problem.batch_size[k]), len(y)
        q = chosen.of_agent(problem, k) / B
        if rule is Rule.ANY_DESIGN:
            B = 1
        models = (problem.optimum, problem.local_optimum(k))
        at = [example_gradients(problem.loss, w, x, y) for w in models]
        beta = 3 * delta**2 / (E * B) * (1 + sum(1 / q[n] for n in range(N)) / N**2)
        sigma = 6 / (E * B * N**2) * sum(at[0][n] @ at[0][n] / q[n] for n in range(N))
        sigma_q = 3 / (B * N**2) * sum(at[1][n] @ at[1][n] / q[n] for n in range(N))
        mean = at[0].mean(axis=0)
        beta_s2 += (beta + 3 * delta**2) / p[k] / K**2
        sigma_s2 += (sigma + (3 + 6 / (E * B)) * mean @ mean) / p[k] / K**2
        for name, value in zip(out, (beta, sigma, sigma_q), strict=True):
            out[name].append(value)
    divide = L if rule is Rule.REPLACEMENT else 1
    out["beta_s2"], out["sigma_s2"] = (beta_s2 + 3 * delta**2) / divide, sigma_s2 / divide
    out["delta"] = delta
    return out


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("policy", [Uniform(), Oracle(floor=0.1)])
def test_constants_are_the_equations(rule, policy):
    problem = SMALL.make()
    algorithm = replace(uniform(), agents=policy, examples=policy)
    found = Constants(problem, algorithm, rule=rule)
    for name, value in literal(problem, algorithm, rule).items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-9, err_msg=name)
    mu, nu, delta = 1e-6, found.nu, found.delta
    assert found.lambda_() == pytest.approx(1 - 2 * mu * nu + mu**2 * (delta**2 + found.beta_s2))
    assert found.limit_centralised == pytest.approx(2 * nu / (delta**2 + found.beta_s2))
    if rule is Rule.PAPER:
        noise = problem.local_steps * found.beta_sk2 / (12 * found.agent_prob) ** 2
        assert found.limit_local == pytest.approx(np.min(2 * nu / (delta**2 + noise)))
        expected = 1 - 2 * nu * mu + mu**2 * (delta**2 + noise)
        np.testing.assert_allclose(found.lambda_k(), expected, rtol=1e-12)
    assert 0.0 < found.limit <= min(found.limit_centralised, found.limit_local)


def test_nu_is_the_smallest_curvature_and_xi_the_largest_distance():
    problem = SMALL.make()
    found = Constants(problem, uniform())
    for k in range(problem.num_agents):
        x, _ = problem.data.agent(k)
        curvature = np.linalg.eigvalsh(2 * x.T @ x / len(x) + 2 * problem.loss.ridge * np.eye(2))
        assert curvature[0] >= found.nu * (1 - 1e-12)
        assert np.linalg.norm(problem.local_optimum(k) - problem.optimum) <= found.xi * (1 + 1e-12)


@pytest.mark.parametrize("rule", [Rule.PAPER, Rule.ANY_DESIGN])
def test_the_exact_variance_lies_below_the_bound(rule):
    problem = SMALL.make()
    rng = np.random.default_rng(0)
    for policy in (Uniform(), Oracle(floor=0.1)):
        algorithm = replace(uniform(), agents=policy, examples=policy)
        found = Constants(problem, algorithm, rule=rule)
        for _ in range(5):
            params = problem.optimum + rng.standard_normal(2)
            chosen = choices_at(problem, algorithm)
            exact = gradient_variance(problem, algorithm, params=params, choices=chosen).total
            distance = np.sum((params - problem.optimum) ** 2)
            assert exact < found.beta_s2 * distance + found.sigma_s2


def test_no_other_probabilities_make_the_bound_smaller():
    """Eq. (44) and (48) minimise eq. (23) and (21); there are no caps here."""
    problem = SMALL.replace(batch_size=(1, 1)).make()
    algorithm = replace(uniform(num_active=1), agents=Oracle(), examples=Oracle())
    best = choices_at(problem, algorithm)
    assert best.agents.max() < 1.0
    least = Constants(problem, algorithm, best, Rule.PAPER)
    rng = np.random.default_rng(1)
    offsets = problem.data.offsets
    for scale in (0.01, 0.1, 1.0):
        for _ in range(10):
            agents = best.agents * np.exp(scale * rng.standard_normal(best.agents.size))
            examples = best.examples * np.exp(scale * rng.standard_normal(best.examples.size))
            sums = np.add.reduceat(examples, offsets[:-1])
            examples /= np.repeat(sums, problem.data.num_examples)
            for other in (
                Choices(agents / agents.sum(), best.examples),
                Choices(best.agents, examples),
                Choices(agents / agents.sum(), examples),
            ):
                assert Constants(problem, algorithm, other, Rule.PAPER).sigma_s2 > least.sigma_s2


def test_a_run_stays_below_the_theorem():
    problem = EQUAL.replace(num_agents=20, num_examples=20, local_steps=(1, 2)).make()
    found = Constants(problem, uniform())
    step = found.limit / 2
    bound = found.bound(step)
    history = simulate(
        problem, uniform(step), rounds=3000, repetitions=5, initial=problem.optimum + 0.1
    )
    curve = bound.curve(3000, 2 * 0.1**2)
    assert np.all(history.mean <= curve)
    assert curve[-1] < curve[0]
    assert sum(bound.limit_parts) == pytest.approx(bound.limit)
    assert all(part > 0.0 for part in bound.limit_parts)


def test_one_local_step_has_no_incremental_noise():
    problem = SMALL.replace(local_steps=(1, 1)).make()
    found = Constants(problem, uniform())
    assert found.incremental(1e-3) == (0.0, 0.0, 0.0)
    step = found.limit / 3
    assert found.contraction(step) == pytest.approx(found.lambda_(step), rel=1e-12)
    expected = step**2 * found.sigma_s2 / (1 - found.lambda_(step))
    assert found.bound(step).limit == pytest.approx(expected)


def test_the_incremental_noise_of_draws_lies_below_lemma_5():
    """E|q_i|^2 of eq. (15), measured with agents that work at a large step."""
    problem = SMALL.replace(num_agents=6, num_examples=6, local_steps=(3, 3)).make()
    algorithm = uniform(step_size=1e-3, num_active=2)
    found = Constants(problem, algorithm)
    start = problem.optimum + 0.3
    rng = np.random.default_rng(0)
    squares = []
    for _ in range(300):
        total = np.zeros(2)
        for k in rng.choice(6, 2, replace=False):
            x, y = problem.data.agent(k)
            B, local = int(problem.batch_size[k]), start.copy()
            for _ in range(3):
                batch = rng.choice(6, B, replace=False)
                here, there = (
                    example_gradients(problem.loss, w, x[batch], y[batch]).mean(axis=0)
                    for w in (local, start)
                )
                total += (here - there) / (3 * 2)
                local = local - 1e-3 / 3 * here
        squares.append(total @ total)
    near, far, noise = found.incremental(1e-3)
    assert np.mean(squares) < near * np.sum((start - problem.optimum) ** 2) + far + noise


def small_problem(loss, x):
    y = np.where(np.arange(len(x)) % 2, 1.0, -1.0)
    return Problem(FederatedData.from_agents([(x, y), (x + 1.0, y)]), loss)


class Own:
    """A loss of which nothing is known but its gradient."""

    def gradient(self, params, x, y, weight):
        return LeastSquares(0.1).gradient(params, x, y, weight)

    def num_params(self, num_features):
        return num_features

    def check_targets(self, targets):
        pass


FLAT = np.ones((4, 2))  # rank 1
FULL = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, -1.0]])


@pytest.mark.parametrize(
    ("loss", "x", "name", "reason"),
    [
        (LeastSquares(0.0), FLAT, "nu", "agent 0 is not strongly convex"),
        (LeastSquares(0.0), FLAT, "limit", "not have full rank"),
        (LeastSquares(0.0), FLAT, "xi", "not strongly convex"),
        (Logistic(0.0), FULL, "nu", "Logistic with ridge=0 is not strongly convex"),
        (Logistic(0.0), FULL, "limit_centralised", "set ridge > 0"),
        (Own(), FULL, "delta", "whether Own is convex is not known"),
        (Own(), FULL, "nu", "whether Own is convex is not known"),
    ],
)
def test_a_constant_that_does_not_exist_says_why(loss, x, name, reason):
    problem = small_problem(loss, x)
    problem.__dict__["optimum"] = np.zeros(2)
    constants = Constants(problem, uniform(num_active=1))
    with pytest.raises(TheoryError, match=reason):
        getattr(constants, name)
    assert reason in constants.report()[name]


class Wavy(LeastSquares):
    """Not convex, whatever its parent is."""


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        (FedAvg(step_size=1e-6, num_active=2), "does not converge to w"),
        (replace(uniform(), drift=0.1), "w\\^o does not move"),
    ],
)
def test_runs_that_the_theorem_is_not_about_are_refused(algorithm, reason):
    with pytest.raises(TheoryError, match=reason):
        Constants(SMALL.make(), algorithm)


def test_a_subclass_and_a_random_size_have_no_constants():
    problem = small_problem(Wavy(0.1), FULL)
    assert "whether Wavy is convex" in str(Constants(problem, uniform(num_active=1)).report()["nu"])
    poisson = replace(uniform(), agent_design=Poisson())
    with pytest.raises(TheoryError, match="Poisson draws a random number"):
        _ = Constants(SMALL.make(), poisson).limit


def test_a_loss_without_a_minimiser_is_reported_not_raised():
    report = Constants(small_problem(Own(), FULL), uniform(num_active=1)).report()
    assert all(isinstance(value, str) for value in report.values())


@pytest.mark.parametrize("share", [1e-12, 1e-9, 1e-3, 0.5])
def test_the_bound_keeps_its_digits_at_tiny_steps(share):
    """The limit over the step size tends to a constant; it must not drown in 1 - (1 - x)."""
    problem = small_problem(Logistic(1e-4), FULL)
    found = Constants(replace(problem, local_steps=2), uniform(num_active=1))
    step = share * found.limit
    ratios = [found.bound(s).limit / s for s in (step, step / 2)]
    assert 0.0 < ratios[1] <= ratios[0] * (1 + 1e-9) < np.inf


def test_auto_is_understood():
    problem = SMALL.make()
    algorithm = replace(uniform(), step_size="auto")
    assert Constants(problem, algorithm).lambda_() == pytest.approx(
        Constants(problem, algorithm).lambda_(stable_step_size(problem, algorithm))
    )
    assert predict(problem, algorithm).step_size == stable_step_size(problem, algorithm)
    with pytest.raises(TheoryError, match="with a drift"):
        predict(problem, replace(algorithm, drift=0.5))


def test_zero_probabilities_have_no_bound():
    problem = small_problem(LeastSquares(0.1), FULL)
    chosen = choices_at(problem, uniform(num_active=1))
    without_agent = Choices(np.array([1.0, 0.0]), chosen.examples)
    with pytest.raises(TheoryError, match="agent 1 has probability 0"):
        _ = Constants(problem, uniform(num_active=1), without_agent).beta_s2
    examples = chosen.examples.copy()
    examples[:4] = [0.5, 0.5, 0.0, 0.0]
    without_example = Constants(problem, uniform(num_active=1), Choices(chosen.agents, examples))
    for name in ("sigma_s2", "beta_s2", "limit"):
        with pytest.raises(TheoryError, match="example 2 of agent 0 has probability 0"):
            getattr(without_example, name)
    report = without_example.report()
    assert isinstance(report["nu"], float)
    assert isinstance(report["sigma_s2"], str)


def test_beyond_the_limit_the_theorem_says_nothing():
    problem = SMALL.make()
    with pytest.raises(TheoryError, match="not below the limit of Theorem 1"):
        Constants(problem, uniform(step_size=0.01)).bound()
    with pytest.raises(ValueError, match="num_active=13 exceeds num_agents=12"):
        _ = Constants(problem, uniform(num_active=13)).sigma_s2
