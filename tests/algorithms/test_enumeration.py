"""The mean update over all draws of K=4, L=2 with one full-batch step: unbiased or not.

For unbiased methods it is the update of full participation to 1e-12. For biased ones the
difference is printed (pytest -rP) and must not be zero.
"""

import itertools

import numpy as np
import pytest
from small_federations import SIZES, quadratics, regression

from isfed import (
    FOLB,
    AgnosticFL,
    Current,
    Deville,
    FedAsync,
    FedAvgScheme,
    FedCS,
    FedProx,
    HybridFL,
    ISFedAvg,
    Oracle,
    QFedAvg,
    QFedSGD,
    Uniform,
)
from isfed.algorithms import agnostic, fedcs, folb, parts
from isfed.base.streams import Purpose
from isfed.federation.agents import Local
from isfed.federation.cloud import Cloud, Selection
from isfed.federation.compiled_agents import CompiledAgents
from isfed.federation.object_agents import ObjectAgents
from isfed.sampling.designs.inclusion import inclusion_probabilities
from isfed.sampling.designs.outcomes import outcomes

START = np.array([0.3, -0.2, 0.5])
COMMON = {"step_size": 0.05, "num_active": 2, "local_steps": 1, "full_batch": True}


def agents_of(algorithm):
    problem = regression()
    return ObjectAgents(problem, algorithm.rules(problem.num_agents), seed=1, repetition=0)


def full_update(weights):
    """-step sum_k c_k grad P_k(w)."""
    parts_of = quadratics(regression())
    return -0.05 * sum(c * (h @ START - b) for c, (h, b) in zip(weights, parts_of, strict=True))


def weights_of(how):
    sizes = regression().data.num_examples
    return sizes / sizes.sum() if how == "size" else np.full(4, 0.25)


def update(algorithm):
    agents = agents_of(algorithm)
    state = algorithm.start(agents, START)
    return algorithm.model(algorithm.round(state, agents, 0)) - START


def mean_over_pairs(algorithm, monkeypatch):
    """Over the six pairs of agents, each as likely."""
    updates = []
    for pair in itertools.combinations(range(4), 2):
        for module in (parts, fedcs, folb):
            monkeypatch.setattr(
                module, "draw_uniformly", lambda *_, chosen=pair, **__: np.array(chosen)
            )
        updates.append(update(algorithm))
    return np.mean(updates, axis=0)


@pytest.mark.parametrize(
    ("algorithm", "how"),
    [
        (FedProx(**COMMON), "uniform"),
        (FedAvgScheme(scheme="II", **COMMON), "uniform"),
        (FedAvgScheme(scheme="transformed-II", **COMMON), "uniform"),
        (FedAvgScheme(scheme="transformed-II", client_weights="size", **COMMON), "size"),
        (FedAvgScheme(scheme="II", client_weights="size", **COMMON), "size"),
        (FedCS(**COMMON), "uniform"),  # without a deadline
        (QFedAvg(power=0.0, **COMMON), "uniform"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_unbiased(algorithm, how, monkeypatch):
    mean = mean_over_pairs(algorithm, monkeypatch)
    np.testing.assert_allclose(mean, full_update(weights_of(how)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("algorithm", "how"),
    [
        (FedProx(client_weights="size", **COMMON), "size"),  # a ratio of two random sums
        (FedAvgScheme(scheme="original", **COMMON), "uniform"),  # a smaller step
        (QFedAvg(power=1.0, **COMMON), "uniform"),
        (FOLB(prox=0.0, **COMMON), "uniform"),
        (FOLB(prox=0.0, variant="two-sets", **COMMON), "uniform"),
        (FedCS(deadline=0.4, **COMMON), "uniform"),
        (HybridFL(deadline=0.8, permit=0.5, **COMMON), "uniform"),
        (QFedSGD(power=1.0, step_size=0.05, num_active=2), "uniform"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_biased(algorithm, how, monkeypatch):
    mean, full = mean_over_pairs(algorithm, monkeypatch), full_update(weights_of(how))
    difference = np.linalg.norm(mean - full) / np.linalg.norm(full)
    print(f"{algorithm.name}: the mean update differs from the full one by {difference:.1%}")
    assert difference > 1e-3


def test_scheme_one_is_unbiased_over_draws_with_replacement(monkeypatch):
    method = FedAvgScheme(scheme="I", client_weights="size", **COMMON)
    prob = weights_of("size")
    mean = np.zeros(3)
    for pair in itertools.product(range(4), repeat=2):
        drawn, times = np.unique(pair, return_counts=True)
        from isfed.algorithms import fedavg_schemes

        monkeypatch.setattr(
            fedavg_schemes, "draw_with_replacement", lambda *_, found=(drawn, times): found
        )
        mean += prob[pair[0]] * prob[pair[1]] * update(method)
    np.testing.assert_allclose(mean, full_update(prob), rtol=1e-12)


def test_draws_with_replacement_have_their_probabilities():
    method = FedAvgScheme(scheme="I", **COMMON)
    agents, prob = agents_of(method), np.array([0.1, 0.0, 0.6, 0.3])
    counts, rounds = np.zeros(4), 4000
    for round_index in range(rounds):
        drawn, times = parts.draw_with_replacement(agents, prob, 3, round_index)
        counts[drawn] += times
    stderr = np.sqrt(prob * (1.0 - prob) / (3 * rounds))
    assert (np.abs(counts / (3 * rounds) - prob) <= 4.0 * stderr).all()


@pytest.mark.parametrize("weighting", ["step", "change"])
@pytest.mark.parametrize("how", ["uniform", "size"])
@pytest.mark.parametrize("policy", [Uniform(), Oracle(), Current(floor=0.3)], ids=lambda p: p.name)
def test_importance_sampling_is_unbiased_for_both_client_weights(
    policy, how, weighting, monkeypatch
):
    """Over all outcomes of the draw of agents, with batches of all examples: c_k / p_k is right."""
    method = ISFedAvg(
        step_size=0.05, num_active=2, agents=policy, examples=Uniform(), client_weights=how,
        weighting=weighting,
    )  # fmt: skip
    problem = regression(batch_size=SIZES, local_steps=1)
    agents = CompiledAgents(problem, method.rules(4), seed=1, repetition=0)
    draws = []  # the table as the cloud would draw from it

    def drawn(cloud, _):
        draws.append(cloud.table.inclusion(2))
        return Selection(np.arange(2), np.full(2, 0.5), np.ones(2))

    monkeypatch.setattr(Cloud, "select", drawn)
    method.round(method.start(agents, START), agents, 0)
    inclusion = draws[0]
    if not policy.equal:  # by size, the scores have the weights as factors
        scores = agents.scores_at(START if policy.name == "current" else problem.optimum)
        weighed = scores * weights_of(how)
        expected = inclusion_probabilities(weighed, 2, floor=policy.floor)
        np.testing.assert_allclose(inclusion, expected, rtol=1e-12)
    mean = np.zeros(3)
    for units, chance in outcomes(Deville(), inclusion):
        chosen = np.array(units)
        selection = Selection(chosen, inclusion[chosen] / 2.0, np.ones(2))
        monkeypatch.setattr(Cloud, "select", lambda *_, found=selection: found)
        state = method.round(method.start(agents, START), agents, 0)
        mean += chance * (method.model(state) - START)
    np.testing.assert_allclose(mean, full_update(weights_of(how)), rtol=1e-12, atol=1e-14)


class Points:
    """In place of a stream: these numbers."""

    def __init__(self, values):
        self.values = np.atleast_1d(values)

    def uniforms(self, count):
        return self.values[:count]


@pytest.mark.parametrize("gradient", ["weighted", "per-domain"])
def test_the_stochastic_gradients_of_agnostic_learning_are_unbiased(gradient, monkeypatch):
    """Over both choices of an agent and the choice of the example whose loss is told.

    The example of the gradient is drawn by the agents, whose mini-batches are tested elsewhere;
    here it is replaced by all of them.
    """
    method = AgnosticFL(step_size=0.05, mixture_step=0.1, stochastic=True, gradient=gradient)
    agents = agents_of(method)
    state = method.start(agents, START)._replace(mixture=np.array([0.4, 0.3, 0.2, 0.1]))
    assert agnostic.one_example(3).batch == 1
    monkeypatch.setattr(
        agnostic, "one_example",
        lambda count: Local(full_batch=True, steps=np.ones(count, np.int64)),
    )  # fmt: skip
    down, up = np.zeros(3), np.zeros(4)
    ends = np.cumsum(state.mixture) - 0.05
    sizes = regression().data.num_examples
    for worker, asked in itertools.product(range(4), repeat=2):
        points = np.array([ends[worker], (asked + 0.5) / 4.0])
        for example in range(sizes[asked]):
            place = (example + 0.5) / sizes[asked]
            monkeypatch.setattr(
                agents, "stream",
                lambda purpose, *_, p=points, e=place: Points(e if purpose == Purpose.RISKS else p),
            )  # fmt: skip
            one, other = method._sampled(state, agents, 0)
            down += state.mixture[worker] * one / 4.0 / sizes[asked]
            up += state.mixture[worker] * other / 4.0 / sizes[asked]
    monkeypatch.undo()
    exact_down, exact_up = method._exact(state, agents, 0)
    np.testing.assert_allclose(down, exact_down, rtol=1e-12)
    np.testing.assert_allclose(up, exact_up, rtol=1e-12)


def test_one_example_is_one_example():
    """Compiled agents and objects draw the same one, and its gradient is that of one example."""
    method = AgnosticFL(step_size=0.05, stochastic=True)
    problem = regression()
    kinds = (ObjectAgents, CompiledAgents)
    found = [
        method._sampled(method.start(a, START), a, 3)
        for a in (kind(problem, method.rules(4), seed=1, repetition=0) for kind in kinds)
    ]
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-12)
    np.testing.assert_array_equal(found[0][1], found[1][1])
    x, y = problem.data.features, problem.data.targets
    every = [
        problem.loss.gradient(START, x[i : i + 1], y[i : i + 1], np.ones(1))[0]
        for i in range(len(y))
    ]
    assert np.min(np.abs(np.array(every) - found[0][0]).max(axis=1)) < 1e-12


def test_fedasync_takes_a_share_of_the_full_step():
    """One fresh agent at a time: over all agents the update is the mixing weight times the full."""
    method = FedAsync(
        step_size=0.05, max_age=0, prox=0.0, mixing=0.6, local_steps=(1, 1), full_batch=True
    )
    updates = []
    for agent in range(4):
        agents = agents_of(method)
        state = method.start(agents, START)
        updates.append(
            method._mixed(START, START, np.array([agent]), 0, agents, 0, np.ones(1, int))
        )
        assert state.params is not None
    mean = np.mean(updates, axis=0) - START
    np.testing.assert_allclose(mean, 0.6 * full_update(np.full(4, 0.25)), rtol=1e-12)
    print("FedAsync: the mean update differs from the full one by 40.0%")
