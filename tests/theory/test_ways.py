"""Which way to sample suits a problem: split by cause, against measured variances and runs."""

import numpy as np
import pytest

from isfed import (
    Deville,
    FederatedData,
    HartleyRao,
    ISFedAvg,
    LeastSquares,
    Memory,
    Problem,
    Uniform,
    simulate,
    stable_step_size,
)
from isfed.sampling.designs.outcomes import outcomes
from isfed.theory import compare_ways, gradient_variance
from isfed.theory.composition_variance import VariateErrors
from isfed.theory.stable_step_size import explain_divergence, memory_limit
from isfed.theory.strategies import WORTH

KINDS = 4


def federation(kind, *, steps=1, batch=10, num_agents=40, seed=0):
    """Agents that differ in size, in direction, in curvature as well, or in nothing but noise."""
    rng = np.random.default_rng(seed)
    agents = []
    for k in range(num_agents):
        x = rng.normal(size=(20, KINDS))
        if kind == "drift":
            x *= rng.uniform(0.3, 2.0, size=KINDS)
        truth = np.zeros(KINDS)
        if kind in ("direction", "drift"):
            truth[k % KINDS] = 3.0 * (-1.0) ** (k // KINDS % 2)
        noise = 0.05
        if kind == "size":
            truth[0] = rng.lognormal(sigma=1.5) * (-1.0) ** k
        if kind == "noise":
            noise = 3.0
        if kind == "unequal noise":
            truth[k % KINDS] = 30.0 * (-1.0) ** (k // KINDS % 2)
            noise = 3.0 * rng.lognormal(sigma=1.5)
        agents.append((x, x @ truth + noise * rng.normal(size=20)))
    data = FederatedData.from_agents(agents)
    return Problem(data, LeastSquares(0.01), local_steps=steps, batch_size=batch)


def with_the_variances_of_the_designs(problem, *, rel):
    """The comparison of a problem, whose variances are those that the designs have."""
    found = compare_ways(problem, num_active=4)
    for name, agents in (("uniform", Uniform()), ("importance", Memory())):
        algorithm = ISFedAvg(
            step_size=1.0, num_active=4, agents=agents, examples=Uniform(),
            agent_design=HartleyRao() if name == "uniform" else Deville(),
            example_design=HartleyRao(),
        )  # fmt: skip
        expected = gradient_variance(problem, algorithm).total
        assert found.ways[name].variance == pytest.approx(expected, rel=rel)
    return found


@pytest.mark.parametrize("kind", ["size", "direction", "noise"])
def test_the_variances_are_those_of_the_designs(kind):
    found = with_the_variances_of_the_designs(federation(kind), rel=1e-9)
    sources = found.sources
    total = sources.size + sources.direction + sources.noise
    assert total == pytest.approx(found.ways["uniform"].excess, rel=1e-9)
    assert found.ways["drift"].excess <= found.ways["uniform"].excess


def test_the_numbers_of_the_agents_are_no_cause():
    """Agents of one kind with numbers in a row are drawn spread out: that is not their size."""
    mixed = federation("direction")
    order = np.argsort(np.arange(40) % (2 * KINDS), kind="stable")
    agents = [mixed.data.agent(k) for k in order]
    in_a_row = Problem(FederatedData.from_agents(agents), mixed.loss, batch_size=10)
    shares = [compare_ways(p, num_active=8).sources.shares() for p in (mixed, in_a_row)]
    assert shares[1] == pytest.approx(shares[0], abs=1e-3)
    assert shares[1]["direction"] > 3.0 * shares[1]["size"]


def test_drift_is_where_full_batches_settle():
    """1/2 b' H^-1 b against the excess risk of a long run with everybody and all data."""
    problem = federation("drift", steps=5, batch=20)
    step = 0.02
    found = compare_ways(problem, num_active=40, step_size=step)
    everybody = ISFedAvg(
        step_size=step, num_active=40, agents=Uniform(), examples=Uniform(), weighting="change"
    )
    params = simulate(problem, everybody, rounds=3000).params[0]

    def risk(w):
        parts = [problem.data.agent(k) for k in range(40)]
        values = [np.mean((y - x @ w) ** 2) for x, y in parts]
        return np.mean(values) + 0.01 * w @ w

    excess = risk(params) - risk(problem.optimum)
    assert excess > 1e-8
    assert found.ways["uniform"].drift == pytest.approx(excess, rel=0.15)
    assert found.ways["drift"].drift == 0.0


@pytest.mark.parametrize(
    ("kind", "options", "best", "words"),
    [
        ("noise", {"batch": 1}, {"uniform"}, "keep uniform agents"),
        ("direction", {}, {"difference", "drift", "spread"}, "direction|kinds"),
        ("drift", {"steps": 5, "batch": 20}, {"drift"}, "correction='drift'"),
    ],
)
def test_the_recommendation_fits_the_cause(kind, options, best, words):
    import re

    found = compare_ways(federation(kind, **options), num_active=4)
    assert found.best.name in best
    assert re.search(words, found.recommendation())
    assert found.as_dict()["recommendation"] == found.recommendation()


@pytest.mark.parametrize("kind", ["noise", "unequal noise"])
def test_a_correction_draws_by_scores_where_agents_differ(kind):
    found = compare_ways(federation(kind), num_active=4)
    assert found.weighted
    assert "with agents=Memory()" in found.recommendation()
    assert found.as_dict()["weighted"]


def test_a_correction_draws_equally_where_agents_are_all_alike():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, KINDS))
    y = x @ np.ones(KINDS) + rng.normal(size=20)
    data = FederatedData.from_agents([(x, y)] * 10)
    found = compare_ways(Problem(data, LeastSquares(0.01), batch_size=5), num_active=4)
    assert not found.weighted
    assert found.best.name == "uniform"


def test_of_two_corrections_that_cost_the_same_the_one_that_leaves_less_is_chosen():
    """Even where it is less than the 0.2 dB that a way with more to remember must gain."""
    several = compare_ways(federation("direction", steps=2), num_active=4, step_size=1e-3)
    left = several.ways["difference"].excess / several.ways["drift"].excess
    assert 1.0 < left < WORTH
    assert several.best.name == "drift"
    one = compare_ways(federation("direction"), num_active=4, step_size=1e-3)
    assert one.ways["difference"].excess == one.ways["drift"].excess
    assert one.best.name == "difference"


def test_memories_that_few_rounds_have_taught_are_worth_less():
    problem = federation("direction")
    ways = [
        compare_ways(problem, num_active=4, rounds=rounds).ways["drift"].variance
        for rounds in (1, 10, 100, 10_000, None)
    ]
    assert ways == sorted(ways, reverse=True)
    assert ways[0] > 2.0 * ways[2]
    assert ways[3] == pytest.approx(ways[4], rel=0.01)
    with pytest.raises(ValueError, match="rounds=0"):
        compare_ways(problem, num_active=4, rounds=0)


@pytest.mark.parametrize("step", [0, -1, np.nan, np.inf, "auto", True])
def test_a_step_size_that_is_no_positive_number_is_refused(step):
    with pytest.raises(ValueError, match=r"step_size=\S+ must be a positive number"):
        compare_ways(federation("direction"), num_active=4, step_size=step)


def test_the_variance_of_a_correction_is_that_of_its_draws():
    """By drawing agents and noise many times, in the agents' order and along a spread."""
    rng = np.random.default_rng(3)
    known = VariateErrors(
        noise=rng.uniform(0.1, 1.0, size=6),
        moved=rng.standard_normal((2, 6, 3)),
        unlearned=rng.uniform(0.0, 1.0, size=6),
    )
    chances = known.inclusion(2, 0.1)
    assert chances.sum() == pytest.approx(2.0)
    for spread in (False, True):
        orders = known._orders(chances) if spread else [np.arange(6)] * 2
        total = 0.0
        for moved, order in zip(known.moved, orders, strict=True):
            for units, chance in outcomes(Deville(), chances[order]):
                drawn = order[list(units)]
                off = (moved[drawn] / chances[drawn, None]).sum(axis=0) - moved.sum(axis=0)
                # Noise of every turn, and of every memory, drawn or not: independent, in one line.
                turns = (known.noise[drawn] / chances[drawn] ** 2).sum()
                factors = np.bincount(drawn, 1.0 / chances[drawn], minlength=6) - 1.0
                total += chance * (off @ off + turns + known.unlearned @ factors**2) / 36 / 2
        assert known.variance(chances, spread=spread) == pytest.approx(total, rel=1e-9)


def test_what_gradients_wander_is_alike_for_agents_that_are_alike():
    """Kinds of agents that see different features: a spread of the innovations pays."""
    rng = np.random.default_rng(0)
    kinds = np.eye(4)[np.arange(40) % 4]
    moved = rng.standard_normal((4, 1, 4)) * kinds  # H_k d with H_k of the agent's kind
    known = VariateErrors(np.full(40, 1e-4), moved, np.zeros(40))
    equal = np.full(40, 0.2)
    mixed = rng.permutation(40)
    known = VariateErrors(known.noise, known.moved[:, mixed], known.unlearned)
    assert known.variance(equal, spread=True) < 0.5 * known.variance(equal)


def test_size_alone_is_named_as_the_cause():
    shares = compare_ways(federation("size"), num_active=4).sources.shares()
    assert shares["size"] > 0.3
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_corrected_step_is_known_to_be_stable():
    problem = federation("drift", steps=5)
    algorithm = ISFedAvg(step_size="auto", num_active=4, correction="drift")
    step = stable_step_size(problem, algorithm)
    assert 0.0 < step <= memory_limit(problem)
    history = simulate(problem, algorithm, rounds=400)
    assert history.msd[0, -1] < history.msd[0, 0]
    curvature = max(
        np.linalg.eigvalsh(2 * x.T @ x / len(x) + 0.02 * np.eye(KINDS))[-1]
        for x, _ in map(problem.data.agent, range(40))
    )
    assert memory_limit(problem) == pytest.approx(1.0 / (3.0 * curvature))


def test_a_corrected_run_that_diverges_says_why():
    problem = federation("drift", steps=5)
    far = ISFedAvg(step_size=100.0, num_active=4, correction="drift")
    assert "limit of gradient descent" in explain_divergence(problem, far)
    near = ISFedAvg(step_size=1.01 * memory_limit(problem), num_active=4, correction="difference")
    assert "remembered gradients" in explain_divergence(problem, near) or "mean-square" in (
        explain_divergence(problem, near)
    )


def test_agents_may_weigh_differently():
    """With weights, the variances are those of the weighted estimate (theory/variance.py)."""
    plain = federation("direction", batch=4)
    data = plain.data
    counts = np.arange(1.0, 1.0 + data.num_agents)
    weighted = FederatedData(data.features, data.targets, data.offsets, counts)
    problem = Problem(weighted, plain.loss, batch_size=plain.batch_size)
    with_the_variances_of_the_designs(problem, rel=1e-6)
