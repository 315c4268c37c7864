"""FedCor and HiCS-FL: what they model, whom they choose, and what they ask for."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from small_federations import quadratics, regression

from isfed import (
    PAPER,
    Clock,
    FedAvg,
    FedCor,
    FederatedData,
    HiCSFL,
    Problem,
    Softmax,
    simulate,
)
from isfed.federation.compiled_agents import CompiledAgents
from isfed.federation.object_agents import ObjectAgents
from isfed.methods.fedcor import NOISE, LossModel, fitted, most_informative, slope
from isfed.methods.hics_fl import ByEntropy, entropies, from_clusters
from isfed.simulate.simulate_call import make_run

STEP, START = 0.03, np.array([0.3, -0.2, 0.5])
SOME = {"step_size": STEP, "num_active": 2}


def classes(num_agents=8, seed=0):
    """Agents of two kinds: some have all three classes, some only one."""
    rng, agents = np.random.default_rng(seed), []
    for k in range(num_agents):
        y = rng.integers(0, 3, 30) if k % 2 else np.full(30, k // 2 % 3)
        agents.append((np.eye(3)[y] + 0.3 * rng.standard_normal((30, 3)), y.astype(float)))
    data = FederatedData.from_agents(agents)
    return Problem(data, Softmax(0.01, num_classes=3), batch_size=5, local_steps=3)


def test_the_slope_of_the_likelihood():
    """Against differences of the density itself."""
    rng = np.random.default_rng(0)
    factor, data = 0.2 * rng.standard_normal((15, 6)), 0.1 * rng.standard_normal((4, 6))
    weight = np.array([1.0, 0.9, 0.8, 0.7])
    rows = np.ascontiguousarray(np.sqrt(weight)[:, None] * data)

    def likelihood(x):
        covariance = x.T @ x + NOISE**2 * np.eye(6)
        return weight @ multivariate_normal(np.zeros(6), covariance).logpdf(data)

    found = slope(factor, rows, float(weight.sum()))
    for i, j in ((0, 0), (3, 2), (14, 5)):
        moved = factor.copy()
        moved[i, j] += 1e-6
        other = factor.copy()
        other[i, j] -= 1e-6
        expected = (likelihood(moved) - likelihood(other)) / 2e-6
        np.testing.assert_allclose(found[i, j], expected, rtol=1e-4, atol=1e-3)
    after = fitted(factor, rows, float(weight.sum()), 200)
    assert likelihood(after) > likelihood(factor) + 1.0


def literal_choice(covariance, share, discount, num):
    count, chosen = len(share), []
    for _ in range(num):
        given = np.array(covariance)
        for k in chosen:
            given = given - np.outer(given[:, k], given[k]) / given[k, k]
        gains = {
            k: discount[k] * sum(share[i] * given[i, k] for i in range(count)) / given[k, k] ** 0.5
            for k in range(count)
            if k not in chosen
        }
        chosen.append(max(gains, key=lambda k: gains[k]))
    return chosen


def test_fedcor_chooses_by_the_letter_and_round_robin_without_correlation():
    rng = np.random.default_rng(1)
    for _ in range(20):
        half = rng.standard_normal((7, 7))
        covariance, share = half.T @ half + 0.1 * np.eye(7), rng.dirichlet(np.ones(7))
        discount = rng.uniform(0.5, 1.0, 7)
        found = most_informative(covariance, share, discount, 3)
        assert found.tolist() == literal_choice(covariance, share, discount, 3)
    discount, seen = np.ones(6), []
    for _ in range(3):
        found = most_informative(np.eye(6), np.full(6, 1 / 6), discount, 2)
        discount[found] *= 0.95
        seen += found.tolist()
    assert sorted(seen) == list(range(6))


def test_fedcor_in_its_warm_up_is_fedavg_and_asks_everybody():
    problem = PAPER.replace(num_agents=20, num_examples=10).make()
    options = {"step_size": 0.01, "num_active": 4}
    found = simulate(problem, FedCor(warm_up=30, **options), rounds=30).params
    expected = simulate(problem, FedAvg(**options), rounds=30).params
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    method = FedCor(warm_up=2, every=2, **options)
    agents = CompiledAgents(problem, method.rules(20), seed=1, repetition=0)
    state, charged = method.start(agents, np.zeros(problem.num_params)), []
    for i in range(6):
        before = agents.ledger.as_array()
        state = method.round(state, agents, i)
        spent = dict(zip(vars(agents.ledger), agents.ledger.as_array() - before, strict=True))
        charged.append(tuple(int(spent[n]) for n in ("models_down", "models_up", "forwards")))
    # Warm-up, the losses after it, a plain round, and a round that is thrown away.
    assert charged == [(20, 4, 200)] * 3 + [(4, 4, 0), (44, 8, 400), (4, 4, 0)]
    assert (state.sampler.rounds >= 0).sum() == 3


def test_fedcor_is_biased():
    method = FedCor(warm_up=1, **SOME, local_steps=1, full_batch=True)
    agents = ObjectAgents(regression(), method.rules(4), seed=3, repetition=0)
    kept = method.start(agents, START)
    model = LossModel(np.zeros((15, 4)), np.ones(4), np.zeros(4), np.zeros((1, 4)), np.array([-1]))
    moved = method.round(kept._replace(sampler=model), agents, 2).params - START
    changes = np.array([-STEP * (h @ START - b) for h, b in quadratics(regression())])
    full = changes.mean(axis=0)
    np.testing.assert_allclose(moved, changes[:2].mean(axis=0), rtol=1e-12)  # the first two
    assert np.linalg.norm(moved - full) > 0.01 * np.linalg.norm(full)


def test_entropies_by_the_letter():
    rng = np.random.default_rng(2)
    updates = 1e-3 * rng.standard_normal((5, 12))
    found = entropies(updates, (3, 4), 1e-3)
    for k in range(5):
        means = np.array([np.mean(updates[k, 4 * c : 4 * c + 4]) for c in range(3)]) / 1e-3
        chance = np.exp(means) / np.exp(means).sum()
        np.testing.assert_allclose(found[k], -(chance * np.log(chance)).sum(), rtol=1e-10)


def test_hics_visits_all_in_order_and_remembers_their_updates():
    problem, method = classes(), HiCSFL(clusters=2, horizon=20, step_size=0.1, num_active=3)
    agents = ObjectAgents(problem, method.rules(8), seed=1, repetition=0)
    federated = method.federated
    state, seen = federated.start(agents, np.zeros(9)), []
    for i in range(3):
        state, info = federated.step(state, agents, i)
        seen.append(info.cohort.agents.tolist())
        np.testing.assert_array_equal(
            state.sampler.updates[info.cohort.agents], info.updates.change
        )
    assert seen == [[0, 1, 2], [3, 4, 5], [6, 7]]
    even = entropies(state.sampler.updates, state.sampler.shape, 0.05)
    assert even[1::2].min() > even[0::2].max()  # those with all classes seem more even


def test_one_cluster_is_uniform_and_without_sharpness_clusters_are():
    rng, counts = np.random.default_rng(0), np.zeros(6)
    for _ in range(4000):
        counts[from_clusters(np.zeros(6, int), np.ones(1), rng.random(4))] += 1
    assert (np.abs(counts / 4000 - 1 / 3) < 4.5 * np.sqrt(2 / 9 / 4000)).all()
    cluster, even = np.array([0, 0, 0, 1]), np.array([1.0, 1.0, 1.0, 0.0])
    sampler = ByEntropy(1, horizon=10, sharpness=4.0)
    np.testing.assert_allclose(sampler.chances(cluster, even, 10), 0.5)
    np.testing.assert_allclose(ByEntropy(1, 10, sharpness=0.0).chances(cluster, even, 0), 0.5)
    expected = np.exp(4.0 * 0.5) / (1.0 + np.exp(4.0 * 0.5))
    np.testing.assert_allclose(sampler.chances(cluster, even, 5)[0], expected, rtol=1e-12)
    # A cluster of one can be drawn once only; the rest comes from the other.
    drawn = from_clusters(cluster, np.array([1e-12, 1.0]), np.array([0.9, 0.1, 0.9, 0.1]))
    assert drawn.tolist() == [3, 0]


def test_hics_over_clusters_is_biased():
    """Over all draws of one agent: the mean of the means of the clusters."""
    cluster, chances, mean = np.array([0, 0, 0, 1]), np.array([0.5, 0.5]), np.zeros(4)
    for one in (0.25, 0.75):
        for other in (np.arange(6) + 0.5) / 6:
            mean[from_clusters(cluster, chances, np.array([one, other]))] += 1 / 12
    np.testing.assert_allclose(mean, [1 / 6, 1 / 6, 1 / 6, 1 / 2], rtol=1e-12)
    assert np.abs(mean - 0.25).max() > 0.2


def test_hics_says_what_it_needs():
    with pytest.raises(ValueError, match=r"softmax output layer.*LeastSquares"):
        simulate(regression(), HiCSFL(**SOME), rounds=1)
    with pytest.raises(ValueError, match=r"output_layer=\(3, 3\) has 12 entries"):
        simulate(classes(), HiCSFL(output_layer=(3, 3), **SOME), rounds=1)


CASES = [FedCor(warm_up=3, every=4, **SOME), HiCSFL(**SOME), HiCSFL(as_coded=True, **SOME)]


@pytest.mark.parametrize("algorithm", CASES, ids=lambda method: method.name)
def test_a_run_with_absences_goes_on_from_its_state(algorithm):
    whole, first, second = (
        make_run(classes(), algorithm, repetitions=1, seed=0, clock=Clock(drop=0.3))
        for _ in range(3)
    )
    whole.advance(16)
    first.advance(7)
    second.restore({name: values.copy() for name, values in first.state().items()})
    second.round_index = 7
    second.advance(9)
    assert np.array_equal(whole.params, second.params)
