"""The mean update over all draws of K=4, L=2 with one full-batch step: unbiased or not.

For unbiased methods it is the update of full participation to 1e-12. For biased ones the
difference is printed (`pytest -rP tests/methods/test_enumeration.py`) and must not be zero.
"""

import itertools

import numpy as np
import pytest
from small_federations import SIZES, quadratics, regression

from isfed import (
    FOLB,
    KAVG,
    AdaptiveTau,
    AgnosticFL,
    Clock,
    CooperativeSGD,
    Current,
    DecentralisedSGD,
    Deville,
    ElasticAveraging,
    FedAsync,
    FedAvgScheme,
    FedCS,
    FedProx,
    FullySynchronousSGD,
    HierFAVG,
    HybridFL,
    ISFedAvg,
    LocalGD,
    LocalSGD,
    Mocha,
    MomentumSGD,
    Oracle,
    PeriodicAveraging,
    PowerOfChoice,
    QFedAvg,
    QFedSGD,
    RestartedSGD,
    StichSGD,
    Uniform,
)
from isfed.base.random_streams import Purpose
from isfed.federation.agents import LocalOptions
from isfed.federation.compiled_agents import CompiledAgents
from isfed.federation.object_agents import ObjectAgents
from isfed.methods import agnostic_fl, fedcs, folb, uniform_samplers
from isfed.methods.catalogue import CATALOGUE
from isfed.sampling.designs.inclusion import inclusion_probabilities
from isfed.sampling.designs.outcomes import outcomes
from isfed.sampling.policies import Table

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


def biased_by(name, mean, full):
    """How far a mean update is from the full one, relative to it; printed, and not zero."""
    difference = np.linalg.norm(mean - full) / np.linalg.norm(full)
    print(f"{name}: the mean update differs from the full one by {difference:.1%}")
    assert difference > 1e-3


def mean_over_pairs(algorithm, monkeypatch):
    """Over the six pairs of agents, each as likely."""
    updates = []
    for pair in itertools.combinations(range(4), 2):
        for module in (uniform_samplers, fedcs, folb):
            monkeypatch.setattr(
                module, "draw_uniformly", lambda *_, chosen=pair, **__: np.array(chosen)
            )
        updates.append(update(algorithm))
    return np.mean(updates, axis=0)


UNBIASED = [
    (FedProx(**COMMON), "uniform"),
    (FedAvgScheme(scheme="II", **COMMON), "uniform"),
    (FedAvgScheme(scheme="transformed-II", **COMMON), "uniform"),
    (FedAvgScheme(scheme="transformed-II", client_weights="size", **COMMON), "size"),
    (FedAvgScheme(scheme="II", client_weights="size", **COMMON), "size"),
    (FedCS(**COMMON), "uniform"),  # without a deadline
    (QFedAvg(power=0.0, **COMMON), "uniform"),
    (QFedSGD(power=0.0, step_size=0.05, num_active=2), "uniform"),
]


@pytest.mark.parametrize(("algorithm", "how"), UNBIASED, ids=lambda v: getattr(v, "name", v))
def test_unbiased(algorithm, how, monkeypatch):
    mean = mean_over_pairs(algorithm, monkeypatch)
    np.testing.assert_allclose(mean, full_update(weights_of(how)), rtol=1e-12, atol=1e-14)


BIASED = [
    (FedProx(client_weights="size", **COMMON), "size"),  # a ratio of two random sums
    (FedAvgScheme(scheme="original", **COMMON), "uniform"),  # a smaller step
    (QFedAvg(power=1.0, **COMMON), "uniform"),
    (FOLB(prox=0.0, **COMMON), "uniform"),
    (FOLB(prox=0.0, variant="two-sets", **COMMON), "uniform"),
    (FedCS(deadline=0.4, **COMMON), "uniform"),
    (HybridFL(deadline=0.8, permit=0.5, **COMMON), "uniform"),
    (QFedSGD(power=1.0, step_size=0.05, num_active=2), "uniform"),
]


@pytest.mark.parametrize(("algorithm", "how"), BIASED, ids=lambda v: getattr(v, "name", v))
def test_biased(algorithm, how, monkeypatch):
    mean = mean_over_pairs(algorithm, monkeypatch)
    biased_by(algorithm.name, mean, full_update(weights_of(how)))


def everybody_works(how):
    """Methods in which all agents work, one full-batch step each."""
    given = {"step_size": 0.05, "client_weights": how}
    full = {**given, "full_batch": True}
    return [
        LocalGD(**given), LocalSGD(**full), KAVG(steps=1, **full), RestartedSGD(**full),
        RestartedSGD(steps=1, average="pre", **full), MomentumSGD(**full),
        AdaptiveTau(adapt=False, budget=1e9, **full), HierFAVG(edges=2, **full),
        CooperativeSGD(**full), FullySynchronousSGD(**full), PeriodicAveraging(steps=1, **full),
        DecentralisedSGD(**full),
    ]  # fmt: skip


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_nothing_is_left_to_chance_where_everybody_works(how):
    full = full_update(weights_of(how))
    for method in everybody_works(how):
        np.testing.assert_allclose(update(method), full, rtol=1e-12, err_msg=method.name)
    stich = StichSGD(strong=1.0, shift=80.0, client_weights=how, full_batch=True)
    state = stich.start(agents := agents_of(stich), START)
    moved = stich.round(state, agents, 0).params - START
    np.testing.assert_allclose(moved, full * stich.step_at(0) / 0.05, rtol=1e-12)


def test_the_anchor_of_elastic_averaging_makes_a_shorter_step():
    """The mean is over five models, of which four have stepped."""
    full = full_update(weights_of("uniform"))
    method = ElasticAveraging(step_size=0.05, full_batch=True)
    np.testing.assert_allclose(update(method), 0.8 * full, rtol=1e-12)
    biased_by(method.name, update(method), full)


def test_biased_though_everybody_works():
    full = full_update(weights_of("uniform"))
    unequal = RestartedSGD(step_size=0.05, steps=(1, 4, 2, 3), full_batch=True)
    # By 2.5 steps on average: what is left is that agents with more steps count more.
    biased_by("RestartedSGD, unequal steps", update(unequal) / 2.5, full)
    worst = PowerOfChoice(candidates=4, **COMMON)  # nothing is random: the two largest risks
    biased_by("PowerOfChoice", update(worst), full)
    agnostic_fl = AgnosticFL(step_size=0.05, mixture_step=0.02)
    agents = agents_of(agnostic_fl)
    state = agnostic_fl.round(agnostic_fl.start(agents, START), agents, 0)
    np.testing.assert_allclose(state.params - START, full, rtol=1e-12)  # as lambda begins
    back = agnostic_fl.round(state._replace(params=START), agents, 1)
    biased_by("AgnosticFL, once lambda has moved", back.params - START, full)
    biased_by("Mocha", update(Mocha()), full)


def test_the_near_optimal_selection_of_folb_is_biased(monkeypatch):
    """Over both draws, by the probabilities that it hands over."""
    method = FOLB(prox=0.0, variant="near-optimal", **COMMON)
    mean, total = np.zeros(3), 0.0
    for pair in itertools.product(range(4), repeat=2):
        chances = []

        def planted(mass, _, pair=pair, chances=chances):
            prob = mass / mass.sum()
            chances.append(prob[pair[0]] * prob[pair[1]])
            return np.unique(pair, return_counts=True)

        monkeypatch.setattr(folb, "count_draws", planted)
        moved = update(method)
        mean, total = mean + chances[0] * moved, total + chances[0]
    np.testing.assert_allclose(total, 1.0, rtol=1e-12)
    biased_by("FOLB, near-optimal", mean, full_update(weights_of("uniform")))


def test_every_method_of_the_catalogue_is_enumerated():
    """Here, or where the name says."""
    elsewhere = {
        "ISFedAvg": "below, and tests/test_unbiased.py",
        "FedAvg": "the draws of FedProx without prox: test_equivalences.py",
        "DynamicFedAvg": "ISFedAvg with uniform policies: test_equivalences.py",
        "importance": "makes an ISFedAvg",
        "LookAheadPasses": "over the plans of a pass: test_stratified_passes.py",
        **dict.fromkeys(("SCAFFOLD", "FedVARP", "ClusteredSampling"), "test_variance_rivals.py"),
    }
    rivals = ("OCS", "AOCS", "KVib", "OSMD", "MABS", "VRB")
    elsewhere |= dict.fromkeys(rivals, "test_unbiased_rivals.py")
    elsewhere |= dict.fromkeys(("DELTA", "MIFA", "FedAU", "ActiveFL"), "test_selection_rivals.py")
    elsewhere |= {"FedCM": "test_fedcm.py"}
    elsewhere |= dict.fromkeys(("Oort", "DivFL", "FedSTaS"), "test_biased_rivals.py")
    elsewhere |= dict.fromkeys(("FedCor", "HiCSFL"), "test_model_rivals.py")
    here = {type(method).__name__ for method, _ in [*UNBIASED, *BIASED]}
    here |= {method.name for method in everybody_works("uniform")}
    here |= {"StichSGD", "ElasticAveraging", "FedAsync", "AgnosticFL", "Mocha", "PowerOfChoice"}
    missing = {entry.name for entry in CATALOGUE} - here - set(elsewhere)
    assert not missing


def test_the_uniform_draw_has_the_same_chance_for_every_pair():
    """What the means above take for granted of `draw_uniformly`."""
    agents, rounds = agents_of(FedProx(**COMMON)), 6000
    counts = np.zeros((4, 4))
    for round_index in range(rounds):
        one, other = np.sort(uniform_samplers.draw_uniformly(agents, 2, round_index))
        counts[one, other] += 1.0
    found = counts[np.triu_indices(4, 1)] / rounds
    stderr = np.sqrt(1.0 / 6.0 * 5.0 / 6.0 / rounds)
    assert (np.abs(found - 1.0 / 6.0) < 4.5 * stderr).all()


def test_scheme_one_is_unbiased_over_draws_with_replacement(monkeypatch):
    method = FedAvgScheme(scheme="I", client_weights="size", **COMMON)
    prob = weights_of("size")
    mean = np.zeros(3)
    for pair in itertools.product(range(4), repeat=2):
        drawn, times = np.unique(pair, return_counts=True)
        monkeypatch.setattr(
            uniform_samplers, "draw_with_replacement", lambda *_, found=(drawn, times): found
        )
        mean += prob[pair[0]] * prob[pair[1]] * update(method)
    np.testing.assert_allclose(mean, full_update(prob), rtol=1e-12)


def test_draws_with_replacement_have_their_probabilities():
    method = FedAvgScheme(scheme="I", **COMMON)
    agents, prob = agents_of(method), np.array([0.1, 0.0, 0.6, 0.3])
    counts, rounds = np.zeros(4), 4000
    for round_index in range(rounds):
        drawn, times = uniform_samplers.draw_with_replacement(agents, prob, 3, round_index)
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

    def drawn(table, num, _):
        draws.append(table.inclusion(num))
        return np.arange(2), np.full(2, 0.5)

    monkeypatch.setattr(Table, "draw", drawn)
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
        found = chosen, inclusion[chosen] / 2.0
        monkeypatch.setattr(Table, "draw", lambda *_, found=found: found)
        state = method.round(method.start(agents, START), agents, 0)
        mean += chance * (method.model(state) - START)
    np.testing.assert_allclose(mean, full_update(weights_of(how)), rtol=1e-12, atol=1e-14)


class Points:
    """In place of a stream: these numbers."""

    def __init__(self, values):
        self.values = np.atleast_1d(values)

    def uniforms(self, count):
        return self.values[:count]


@pytest.mark.parametrize("num", [1, 2, 3])
@pytest.mark.parametrize("how", ["uniform", "size"])
@pytest.mark.parametrize("by", ["uniform", "size"])
def test_power_of_choice_over_all_candidates(by, how, num, monkeypatch):
    """K = 5, d = 3: every set of candidates, and sizes count once: in the draw or in the mean."""
    problem = regression(sizes=(4, 9, 3, 6, 5), local_steps=1)
    method = PowerOfChoice(
        candidates=3, candidates_by=by, client_weights=how, **{**COMMON, "num_active": num}
    )
    agents = ObjectAgents(problem, method.rules(5), seed=1, repetition=0)
    pieces, sizes = quadratics(problem), problem.data.num_examples
    risks = [
        float(np.mean((y - x @ START) ** 2) + 0.01 * START @ START)
        for x, y in (problem.data.agent(k) for k in range(5))
    ]
    mass = sizes if by == "size" else np.ones(5)
    for drawn in itertools.combinations(range(5), 3):
        rings = np.full(5, 9.0)  # the exponential times; the three shortest are the candidates'
        rings[list(drawn)] = 0.1, 0.2, 0.3
        points = Points(-np.expm1(-0.01 * rings * mass))
        monkeypatch.setattr(agents, "stream", lambda *_, p=points: p)
        moved = method.round(method.start(agents, START), agents, 0).params - START
        worst = sorted(drawn, key=lambda k: -risks[k])[:num]
        counts = sizes if how == "size" and by == "uniform" else np.ones(5)
        steps = [-0.05 * counts[k] * (pieces[k][0] @ START - pieces[k][1]) for k in worst]
        literal = sum(steps) / sum(counts[k] for k in worst)
        np.testing.assert_allclose(moved, literal, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("gradient", ["weighted", "per-domain"])
def test_the_stochastic_gradients_of_agnostic_learning_are_unbiased(gradient, monkeypatch):
    """Over both choices of an agent and the choice of the example whose loss is told.

    The example of the gradient is drawn by the agents, whose mini-batches are tested elsewhere;
    here it is replaced by all of them.
    """
    method = AgnosticFL(step_size=0.05, mixture_step=0.1, stochastic=True, gradient=gradient)
    agents = agents_of(method)
    state = method.start(agents, START)._replace(mixture=np.array([0.4, 0.3, 0.2, 0.1]))
    assert agnostic_fl.one_example(3).batch == 1
    monkeypatch.setattr(
        agnostic_fl, "one_example",
        lambda count: LocalOptions(full_batch=True, steps=np.ones(count, np.int64)),
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
    mean, full = np.mean(updates, axis=0) - START, full_update(np.full(4, 0.25))
    np.testing.assert_allclose(mean, 0.6 * full, rtol=1e-12)
    biased_by("FedAsync", mean, full)


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_the_first_agents_of_fedasync_are_drawn_like_all_others(how, monkeypatch):
    """K = 5, three at work: every order of three agents has the length of successive draws."""
    sizes = (4, 9, 3, 6, 5)
    method = FedAsync(step_size=0.05, in_flight=3, client_weights=how)
    agents = ObjectAgents(regression(sizes=sizes), method.rules(5), seed=1, repetition=0)
    if how == "uniform":  # FedAvg's draw: every agent three times in five
        found = [uniform_samplers.draw_uniformly(agents, 3, i) for i in range(3000)]
        share = np.bincount(np.concatenate(found), minlength=5) / 3000
        assert (np.abs(share - 0.6) < 4.5 * np.sqrt(0.6 * 0.4 / 3000)).all()
        return
    for order in itertools.permutations(range(5), 3):
        for place in (1e-9, 0.5, 1.0 - 1e-9):  # both ends of the interval of [0, 1), and within
            points, left = [], list(range(5))
            for agent in order:
                total = sum(sizes[k] for k in left)
                below = sum(sizes[k] for k in left if k < agent)
                points.append((below + place * sizes[agent]) / total)
                left.remove(agent)
            stream = Points(np.array(points))
            monkeypatch.setattr(agents, "stream", lambda *_, p=stream: p)
            assert tuple(method.start(agents, START).agents) == order


@pytest.mark.parametrize("how", ["uniform", "size"])
@pytest.mark.parametrize("mode", [{"max_age": 3}, {"in_flight": 2, "local_steps": (1, 3)}])
def test_fedasync_over_all_losses(mode, how, monkeypatch):
    """Every pattern of arrivals in six rounds: the age is the number of models mixed in since."""
    problem, pieces = regression(), quadratics(regression())
    method = FedAsync(step_size=0.05, prox=0.2, full_batch=True, client_weights=how, **mode)
    for arrives in itertools.product((True, False), repeat=6):
        agents = ObjectAgents(problem, method.rules(4), seed=1, repetition=0)
        agents.use_clock(Clock(rate=(1.0, 5.0), drop=0.5))
        monkeypatch.setattr(agents, "answers", lambda which, i, a=arrives: np.array([a[i]]))
        state, versions = method.start(agents, START), [START]
        queue = [[agent, START, 0, 0] for agent in state.agents]  # who, from what and when
        for i, here in enumerate(arrives):
            if queue:
                slot = int(np.argmin(state.finish))
                agent, sent, since, round_index = queue[slot]
                age = len(versions) - 1 - since
                low, high = mode["local_steps"]
                point = agents.stream(Purpose.STRAGGLERS, round_index, agent).uniforms(1)[0]
                steps = low + int(point * (high - low + 1))
            else:
                drawn = uniform_samplers.draw_uniformly(agents, 1, i)
                if how == "size":
                    drawn = uniform_samplers.draw_with_replacement(
                        agents, weights_of("size"), 1, i
                    )[0]
                agent, steps = drawn[0], 2
                point = agents.stream(Purpose.STALENESS, i).uniforms(1)[0]
                age = min(int(4 * point), len(versions) - 1)
                sent = versions[len(versions) - 1 - age]
            (h, b), x, weight = pieces[agent], sent, 0.6 * (age + 1) ** -0.5
            for _ in range(steps):
                x = x - 0.05 * (h @ x - b + 0.2 * (x - sent))
            if here:
                versions.append((1 - weight) * versions[-1] + weight * x)
            state = method.round(state, agents, i)
            np.testing.assert_allclose(state.params, versions[-1], rtol=1e-11, atol=1e-14)
            assert int(state.version) == len(versions) - 1
            if queue:
                queue[slot] = [state.agents[slot], versions[-1], len(versions) - 1, i + 1]
