"""MOCHA: the duality gap closes for all three losses, tasks alone are ridge regressions."""

import numpy as np
import pytest
from small_federations import regression

from isfed import FederatedData, Huber, LeastSquares, Logistic, Mocha, Problem, simulate
from isfed.federation.object_agents import ObjectAgents
from isfed.methods.mocha import HINGE, SQUARED, dual_round, related


def rows_of(data):
    """The rows of every agent."""
    return [slice(a, b) for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True)]


def primal(algorithm, problem, state):
    """The objective at the agents' models."""
    models, kind = algorithm.models(state), algorithm.kind(problem)
    total = 0.0
    for agent, rows in enumerate(rows_of(problem.data)):
        margins = problem.data.features[rows] @ models[agent]
        y = problem.data.targets[rows]
        if kind == HINGE:
            losses = np.maximum(0.0, 1.0 - y * margins)
        elif kind == SQUARED:
            losses = (margins - y) ** 2
        else:
            losses = np.logaddexp(0.0, -y * margins)
        total += float(losses.mean())
    return total + penalty(algorithm, state)


def dual_value(algorithm, problem, state):
    """The dual objective; never above the primal one."""
    kind = algorithm.kind(problem)
    total = 0.0
    for rows in rows_of(problem.data):
        dual, y = state.dual[rows], problem.data.targets[rows]
        share = dual * y
        if kind == HINGE:
            conjugate = -share
        elif kind == SQUARED:
            conjugate = dual**2 / 4.0 - share
        else:
            inside = np.clip(share, 1e-300, 1.0 - 1e-16)
            conjugate = inside * np.log(inside) + (1.0 - inside) * np.log1p(-inside)
        total += float(conjugate.mean())
    return -penalty(algorithm, state) - total


def penalty(algorithm, state):
    """lambda/2 tr(W Omega W')."""
    shared = state.shared
    return float((shared * (state.relations @ shared)).sum()) / (2.0 * algorithm.penalty)


def labelled(loss=None):
    rng = np.random.default_rng(8)
    agents = []
    for n in (12, 7, 15):
        x = rng.standard_normal((n, 3))
        y = np.sign(x @ rng.standard_normal(3) + 0.3 * rng.standard_normal(n))
        agents.append((x, y))
    return Problem(FederatedData.from_agents(agents), loss or Logistic(), batch_size=1)


def stepped(method, problem, rounds, *, relations=None):
    agents = ObjectAgents(problem, method.rules(problem.num_agents), seed=2, repetition=0)
    state = method.start(agents, np.zeros(problem.num_params))
    if relations is not None:
        safety = (np.abs(relations).sum(axis=1) / np.diag(relations)).max()
        state = state._replace(relations=relations, safety=np.array([safety]))
    gaps = []
    for round_index in range(rounds):
        state = method.round(state, agents, round_index)
        gaps.append(primal(method, problem, state) - dual_value(method, problem, state))
    return state, np.array(gaps)


@pytest.mark.parametrize("loss", ["hinge", "squared", "logistic"])
def test_the_duality_gap_closes(loss):
    rng = np.random.default_rng(1)
    root = rng.standard_normal((3, 3))
    relations = root @ root.T + 0.3 * np.eye(3)
    relations /= np.trace(relations)
    method = Mocha(penalty=0.1, learn_relations=False, loss=loss, effort=(0.3, 1.0))
    _, gaps = stepped(method, labelled(), 600, relations=relations)
    assert (gaps > -1e-12).all()
    assert gaps[-1] < 1e-7 * gaps[0] + 1e-9


def test_the_gap_still_closes_after_the_relations_have_changed():
    """W is computed anew from B; with the old W the gap would not close."""
    method = Mocha(penalty=0.1, inner_rounds=10, loss="squared")
    problem = labelled()
    state, _ = stepped(method, problem, 30)
    fixed = Mocha(penalty=0.1, learn_relations=False, loss="squared")
    _, gaps = stepped(fixed, problem, 800, relations=state.relations)
    assert gaps[-1] < 1e-9


def test_unrelated_tasks_are_independent_ridge_regressions():
    problem = regression()
    method = Mocha(penalty=0.3, learn_relations=False, effort=(1.0, 1.0))
    state, _ = stepped(method, problem, 400)
    for agent, model in enumerate(method.models(state)):
        x, y = problem.data.agent(agent)
        # mean (x w - y)^2 + lambda K / 2 |w|^2
        exact = np.linalg.solve(2 * x.T @ x / len(y) + 0.3 * 4 * np.eye(3), 2 * x.T @ y / len(y))
        np.testing.assert_allclose(model, exact, atol=1e-10)


def test_the_relations_are_the_root_of_the_models_products():
    models = np.random.default_rng(4).standard_normal((5, 3))
    state, _ = stepped(Mocha(), labelled(), 1)
    found = related(state, models).relations
    values, vectors = np.linalg.eigh(models @ models.T)
    root = (vectors * np.maximum(np.sqrt(np.maximum(values, 0.0)), 1e-7)) @ vectors.T
    np.testing.assert_allclose(found, root / np.trace(root), atol=1e-9)
    np.testing.assert_allclose(np.trace(found), 1.0, rtol=1e-12)


def test_tasks_do_not_depend_on_each_others_order():
    """One inner round at once, or task after task from the same W, the last one first."""
    problem, method = labelled(), Mocha(penalty=0.1, effort=(0.7, 0.7))
    state, _ = stepped(method, problem, 3)
    data = problem.data
    steps = np.array([8, 5, 10])

    def ran(parts):
        dual, shared = state.dual.copy(), state.shared.copy()
        for part in parts:
            dual_round(
                2, (data.features, data.targets, data.offsets), dual, shared, method.models(state),
                np.diag(state.relations).copy(), (0.1, float(state.safety[0])), part,
                (np.uint64(5), 9),
            )  # fmt: skip
        return dual, shared

    one = ran([steps])
    other = ran([steps * (np.arange(3) == k) for k in (2, 1, 0)])
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_single_model_is_the_mean_by_the_client_weights():
    problem = regression()
    state, _ = stepped(Mocha(client_weights="size"), problem, 5)
    sizes = problem.data.num_examples
    expected = sizes @ Mocha().models(state) / sizes.sum()
    np.testing.assert_allclose(Mocha().model(state), expected, rtol=1e-12)


def test_dropped_agents_do_nothing():
    method = Mocha(drop=0.9, effort=(0.1, 1.0), penalty=0.1)
    ledger = simulate(labelled(), method, rounds=50, engine="agents").ledger()
    assert 0 < ledger.models_up < 50 * 3 * 0.3
    full = simulate(labelled(), Mocha(penalty=0.1), rounds=50, engine="agents").ledger()
    assert full.models_up == 150


def test_bad_input():
    with pytest.raises(ValueError, match="no conjugate step for Huber"):
        simulate(labelled(Huber()), Mocha(), rounds=1)
    with pytest.raises(ValueError, match=r"needs targets of -1 or .*; that of example 0 is "):
        simulate(regression(), Mocha(loss="hinge"), rounds=1)
    for message, make in [
        ("penalty=0", lambda: Mocha(penalty=0)),
        ("effort", lambda: Mocha(effort=(0.0, 1.0))),
        ("drop=1", lambda: Mocha(drop=1)),
        ("loss='cubic'", lambda: Mocha(loss="cubic")),  # type: ignore[arg-type]
    ]:
        with pytest.raises(ValueError, match=message):
            make()
    assert LeastSquares().ridge == 0.0
