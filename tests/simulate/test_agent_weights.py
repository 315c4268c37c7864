"""Agents that count differently, against least squares with rows that are longer instead.

With a weight a_k and no ridge, a_k (y - x . w)^2 is the loss of the row sqrt(a_k) (x, y): the same
risk, gradients and probabilities, so that runs agree to rounding.
"""

from typing import Any

import numpy as np
import pytest

from isfed import (
    Current,
    DivergenceError,
    FedAdam,
    FedAvg,
    FederatedData,
    FedProx,
    ISFedAvg,
    LeastSquares,
    Logistic,
    Memory,
    Oracle,
    Problem,
    Running,
    Scheduled,
    Served,
    Uniform,
    certify,
    diagnose,
    simulate,
    step_limits,
)
from isfed.methods.over_network import check_for_network
from isfed.simulate.simulate_call import make_run
from isfed.studies.name_registry import METHODS, method_keys

SIZES = np.array([3, 8, 5, 12, 4, 9])


def pair(loss=None, *, batch_size: Any = 2, local_steps: Any = 2):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SIZES.sum(), 3))
    y = x @ [1.0, -1.0, 2.0] + rng.standard_normal(SIZES.sum())
    weights = SIZES / SIZES.mean()
    offsets = np.cumsum([0, *SIZES])
    longer = np.sqrt(np.repeat(weights, SIZES))
    common: dict[str, Any] = {"batch_size": batch_size, "local_steps": local_steps}
    return (
        Problem(FederatedData(x, y, offsets, SIZES), loss or LeastSquares(), **common),
        Problem(FederatedData(longer[:, None] * x, longer * y, offsets), LeastSquares(), **common),
    )


@pytest.mark.parametrize("policy", [Uniform(), Memory(), Running(), Current(), Oracle()])
def test_runs_agree(policy):
    weighted, longer = pair()
    algorithm = ISFedAvg(step_size=0.05, num_active=2, agents=policy, examples=policy)
    found, expected = (
        simulate(problem, algorithm, rounds=60, repetitions=3) for problem in (weighted, longer)
    )
    np.testing.assert_allclose(found.msd, expected.msd, rtol=1e-8)
    np.testing.assert_allclose(found.agent_prob, expected.agent_prob, rtol=1e-8)


@pytest.mark.parametrize("policy", [Uniform(), Memory(), Running(), Current(), Oracle()])
def test_by_size_agents_and_objects_move_like_the_kernel_on_weighted_data(policy):
    """Weights of the method on plain data, and weights of the data: the same model, bit for bit."""
    weighted, _ = pair()
    data = weighted.data
    plain = Problem(
        FederatedData(data.features, data.targets, data.offsets), LeastSquares(),
        batch_size=2, local_steps=2,
    )  # fmt: skip
    common: dict[str, Any] = {"step_size": 0.05, "num_active": 2}
    kernel = ISFedAvg(agents=policy, examples=policy, **common)
    expected = simulate(weighted, kernel, rounds=40, repetitions=2, engine="kernel")
    by_size = ISFedAvg(agents=policy, examples=policy, client_weights="size", **common)
    for engine in ("auto", "objects"):
        found = simulate(plain, by_size, rounds=40, repetitions=2, engine=engine)
        np.testing.assert_array_equal(found.params, expected.params)
        np.testing.assert_array_equal(found.agent_prob, expected.agent_prob)
        np.testing.assert_array_equal(found.telemetry, expected.telemetry)
        np.testing.assert_array_equal(found.msd, expected.msd)
    same = simulate(plain, kernel, rounds=40, repetitions=2)
    assert (same.params != expected.params).all()


def test_by_size_ends_at_the_optimum_of_all_rows():
    """Full batches, everybody heard, one step: gradient descent on sum_k c_k P_k."""
    weighted, _ = pair(batch_size=SIZES, local_steps=1)
    data = weighted.data
    plain = Problem(
        FederatedData(data.features, data.targets, data.offsets), LeastSquares(), batch_size=SIZES
    )
    algorithm = ISFedAvg(
        step_size=0.1, num_active=6, agents=Uniform(), examples=Uniform(), client_weights="size"
    )
    history = simulate(plain, algorithm, rounds=600)
    np.testing.assert_allclose(history.params[0], weighted.optimum, rtol=1e-10)
    assert history.msd[0, -1] < 1e-25
    assert np.abs(weighted.optimum - plain.optimum).max() > 1e-3


def plain_pair():
    """A problem without weights, and w^o of sum_k c_k P_k by the normal equations, by name."""
    weighted, _ = pair()
    data = weighted.data
    plain = Problem(FederatedData(data.features, data.targets, data.offsets), LeastSquares(0.01))
    found = {}
    for how, counts in (("uniform", np.ones(6)), ("size", SIZES)):
        blocks = [plain.data.agent(k) for k in range(6)]
        shares = zip(counts / counts.sum(), blocks, strict=True)
        every = [c / len(y) * x.T @ np.column_stack([x, y]) for c, (x, y) in shares]
        normal = np.sum(every, axis=0)
        found[how] = normal[:, :3], np.linalg.solve(normal[:, :3] + 0.01 * np.eye(3), normal[:, 3])
    return plain, found


@pytest.mark.parametrize("how", ["uniform", "size"])
@pytest.mark.parametrize("name", METHODS)
def test_the_msd_is_the_distance_to_what_the_method_aims_at(name, how):
    plain, found = plain_pair()
    given = {"step_size": 0.02, "num_active": 2, "strong": 1.0, "shift": 80.0, "steps": 2,
             "edges": 2, "output_layer": (1, 2), "client_weights": how}  # fmt: skip
    keys = method_keys(name)
    method = METHODS[name](**{key: value for key, value in given.items() if key in keys})
    around = [method]
    if name in ("ISFedAvg", "FedProx"):
        around.append(Served(Scheduled(method, lambda _: 0.02), FedAdam()))
    for algorithm in around:
        history = simulate(plain, algorithm, rounds=5, repetitions=2, engine="agents")
        expected = ((history.params - found[how][1]) ** 2).sum(axis=1)
        np.testing.assert_allclose(history.msd[:, -1], expected, rtol=1e-9)
        assert history.no_msd is None


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_an_optimum_that_drifts_is_the_one_aimed_at(how):
    """(R + ridge I)^-1 R times the drift of the true model, with the moments R weighted by c_k."""
    plain, found = plain_pair()
    method = ISFedAvg(step_size=0.02, num_active=2, drift=0.1, client_weights=how)
    run = make_run(plain, method, engine="agents")
    block = run.advance(6)
    moments, optimum = found[how]
    shift = run.agents[0].shift  # type: ignore[attr-defined]
    place = optimum + np.linalg.solve(moments + 0.01 * np.eye(3), moments @ shift)
    np.testing.assert_allclose(block.msd[0, -1], ((run.params[0] - place) ** 2).sum(), rtol=1e-9)


def test_an_optimum_that_was_given_is_that_of_equal_weights():
    plain, found = plain_pair()
    method = ISFedAvg(step_size=0.02, num_active=2, client_weights="size")
    np.testing.assert_allclose(plain.by_size.optimum, found["size"][1], rtol=1e-12)
    np.testing.assert_allclose(plain.by_size.with_optimum(np.ones(3)).optimum, np.ones(3))
    given = plain.with_optimum(found["uniform"][1])
    history = simulate(given, method, rounds=2)
    expected = ((history.params[0] - found["size"][1]) ** 2).sum()
    np.testing.assert_allclose(history.msd[0, -1], expected, rtol=1e-9)
    without = Problem(plain.data, plain.loss, optimum=None)
    assert "optimum=None" in str(simulate(without, method, rounds=2).no_msd)
    same = Problem(FederatedData(np.eye(4), np.ones(4), np.arange(5)), LeastSquares(0.01))
    assert same.by_size is same


def test_weights_by_size_are_refused_by_name_where_they_are_not_known():
    common: dict[str, Any] = {"step_size": 0.05, "num_active": 2, "client_weights": "size"}
    algorithm = ISFedAvg(**common)
    weighted, longer = pair()
    with pytest.raises(ValueError, match=r"needs equal weights.*use client_weights='uniform'"):
        ISFedAvg(correction="difference", **common)
    with pytest.raises(ValueError, match="'auto' needs client_weights='uniform'"):
        ISFedAvg(**{**common, "step_size": "auto"})
    with pytest.raises(ValueError, match="client_weights='sizes' must be 'uniform' or 'size'"):
        ISFedAvg(**{**common, "client_weights": "sizes"})
    assert certify(longer, algorithm, rounds=3).unbiased
    with pytest.raises(ValueError, match="client_weights='size' must be 'uniform' here"):
        step_limits(longer, algorithm)
    with pytest.raises(ValueError, match=r"network: Strategy\(agent_weights="):
        check_for_network(algorithm, 6)
    with pytest.raises(ValueError, match="data with agent weights"):
        simulate(weighted, algorithm, rounds=1)
    with pytest.raises(DivergenceError, match="use a smaller step size"):
        simulate(longer, ISFedAvg(**{**common, "step_size": 1e6}), rounds=200)


def test_risk_and_theory_agree():
    weighted, longer = pair()
    np.testing.assert_allclose(weighted.optimum, longer.optimum, rtol=1e-10)
    model = np.ones(3)
    assert weighted.risk(model) == pytest.approx(longer.risk(model))
    one, other = (diagnose(problem, num_active=2, theory=False) for problem in (weighted, longer))
    for name, option in one.options.items():
        for key in ("variance", "gain_db", "step_limit", "settled_after", "agents_share"):
            expected = getattr(other.options[name], key)
            assert getattr(option, key) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_weighing_by_rows_is_the_risk_of_all_rows():
    weighted, _ = pair()
    x, y = weighted.data.features, weighted.data.targets
    np.testing.assert_allclose(weighted.data.row_weights(), 1.0 / len(y))
    np.testing.assert_allclose(weighted.optimum, np.linalg.lstsq(x, y, rcond=None)[0], rtol=1e-10)


def test_what_does_not_know_weights_refuses_them():
    weighted, _ = pair()
    with pytest.raises(ValueError, match="data with agent weights"):
        simulate(weighted, FedAvg(step_size=0.1, num_active=2), rounds=1, engine="objects")
    with pytest.raises(ValueError, match="but not by FedProx"):
        simulate(weighted, FedProx(step_size=0.1, num_active=2, prox=0.1), rounds=1)
    data = weighted.data
    for bad in (np.ones(3), -SIZES, np.full(6, np.nan)):
        with pytest.raises(ValueError, match="weights must be 6 positive numbers"):
            FederatedData(data.features, data.targets, data.offsets, bad)


def test_a_loss_that_prepares_the_rows_keeps_the_weights():
    offsets, weights = np.array([0, 1, 2]), np.array([1, 3])
    data = FederatedData(np.ones((2, 1), np.float32), np.array([1, -1]), offsets, weights)
    np.testing.assert_allclose(Problem(data, Logistic()).data.agent_weights, [0.5, 1.5])
