"""OCS, AOCS, K-Vib, OSMD, MABS and VRB: unbiased over all outcomes, their ends, their defects."""

import itertools
from copy import deepcopy

import numpy as np
import pytest
from small_federations import quadratics, regression

from isfed import (
    AOCS,
    MABS,
    OCS,
    OSMD,
    VRB,
    Clock,
    ControlVariates,
    Correction,
    Deville,
    FedAvg,
    Federated,
    HorvitzThompson,
    KVib,
    LocalSteps,
    Mean,
    Uniform,
    simulate,
)
from isfed.base.random_streams import Purpose
from isfed.federation.object_agents import ObjectAgents
from isfed.methods import bandit_samplers
from isfed.methods.bandit_samplers import BanditState, MirrorDescent, RootOfSums, floored
from isfed.methods.catalogue import CATALOGUE
from isfed.methods.change_norms import capped_inclusion
from isfed.methods.delta_sampling import ByDiversity
from isfed.methods.fedstas import StratifiedCohort
from isfed.methods.kvib import CumulativeNorms, SumsState
from isfed.methods.optimal_sampling import approximate_inclusion
from isfed.simulate.simulate_call import make_run
from isfed.studies.name_registry import METHODS

STEP, START = 0.03, np.array([0.3, -0.2, 0.5])
FULL = {"step_size": STEP, "num_active": 2, "local_steps": 1, "full_batch": True}
SOME = {"step_size": STEP, "num_active": 2}


class Points:
    """In place of a stream: these numbers."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def uniforms(self, count):
        return self.values[:count]


def agents_of(method, problem=None):
    problem = problem or regression()
    return ObjectAgents(problem, method.rules(problem.num_agents), seed=3, repetition=0)


def after(method, agents, rounds):
    state = method.start(agents, START)
    for i in range(rounds):
        state = method.round(state, agents, i)
    return state


def changes_at(params):
    return np.array([-STEP * (h @ params - b) for h, b in quadratics(regression())])


def mean_over_coins(method, agents, state, chances, monkeypatch):
    """The mean model over all outcomes of independent draws."""
    mean = np.zeros(3)
    for drawn in itertools.product((True, False), repeat=4):
        points = Points([p / 2 if d else (1 + p) / 2 for p, d in zip(chances, drawn, strict=True)])
        weight = np.prod(np.where(drawn, chances, 1 - chances))
        monkeypatch.setattr(agents, "stream", lambda *_, p=points, **__: p)
        if weight > 0.0:
            mean += weight * method.round(deepcopy(state), agents, 99).params
    return mean


@pytest.mark.parametrize("how", ["uniform", "size"])
@pytest.mark.parametrize("method", [OCS, AOCS])
def test_ocs_is_unbiased(method, how, monkeypatch):
    method = method(client_weights=how, **FULL)
    agents = agents_of(method)
    state = after(method, agents, 3)
    share, changes = agents.facts(how).share(), changes_at(state.params)
    chances = capped_inclusion(share * np.linalg.norm(changes, axis=1), 2)
    assert np.ptp(chances) > 0.1
    mean = mean_over_coins(method, agents, state, chances, monkeypatch)
    np.testing.assert_allclose(mean - state.params, share @ changes, atol=1e-12)


def test_aocs_without_loops_is_unbiased_too(monkeypatch):
    method = AOCS(loops=0, **FULL)
    agents, state = agents_of(method), method.start(agents_of(method), START)
    changes = changes_at(START)
    lengths = np.linalg.norm(changes, axis=1)
    chances = np.minimum(1.0, 2 * lengths / lengths.sum())
    mean = mean_over_coins(method, agents, state, chances, monkeypatch)
    np.testing.assert_allclose(mean - START, changes.mean(axis=0), atol=1e-12)


@pytest.mark.parametrize("how", ["uniform", "size"])
@pytest.mark.parametrize("root", [True, False])
def test_kvib_is_unbiased(root, how, monkeypatch):
    method = KVib(client_weights=how, root=root, regulariser=1e-8, horizon=10**6, **FULL)
    agents = agents_of(method)
    state = after(method, agents, 6)
    chances = method.federated.sampler.inclusion(state.sampler, 4)
    assert np.ptp(chances) > 0.1
    share, changes = agents.facts(how).share(), changes_at(state.params)
    mean = mean_over_coins(method, agents, state, chances, monkeypatch)
    np.testing.assert_allclose(mean - state.params, share @ changes, atol=1e-12)


@pytest.mark.parametrize("how", ["uniform", "size"])
@pytest.mark.parametrize("method", [OSMD, MABS, VRB])
def test_bandits_are_unbiased(method, how, monkeypatch):
    method = method(client_weights=how, horizon=5, **FULL)
    agents = agents_of(method)
    state = after(method, agents, 5)
    prob = state.sampler.prob.copy()
    assert np.ptp(prob) > 1e-3
    mean = np.zeros(3)
    for pair in itertools.product(range(4), repeat=2):
        counted = np.unique(pair, return_counts=True)
        monkeypatch.setattr(bandit_samplers, "draw_with_replacement", lambda *_, c=counted: c)
        mean += prob[list(pair)].prod() * method.round(deepcopy(state), agents, 99).params
    share, changes = agents.facts(how).share(), changes_at(state.params)
    np.testing.assert_allclose(mean - state.params, share @ changes, atol=1e-12)


def off_by_one(norms, num):
    """The solver as public programs have it: `i <= l`, where i counts from 0 and l from 1."""
    order, count = np.argsort(norms), norms.size
    ranked = norms[order]
    sums = np.cumsum(ranked)
    fits = [j for j in range(1, count + 1) if 0 < num + j - count <= sums[j - 1] / ranked[j - 1]]
    last, chances = fits[-1], np.ones(count)
    for i in range(count):
        if i <= last:
            chances[order[i]] = (num + last - count) * ranked[i] / sums[last - 1]
    return chances


def test_the_public_solver_exceeds_1_and_ours_does_not():
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(200):
        norms = rng.lognormal(0.0, 1.5, 50)
        wrong += off_by_one(norms, 10).max() > 1.0 + 1e-9
        for found in (capped_inclusion(norms, 10), approximate_inclusion(norms, 10, 50)[0]):
            assert found.max() <= 1.0
            np.testing.assert_allclose(found.sum(), 10.0, rtol=1e-12)
    assert wrong > 150


def test_four_loops_are_enough_and_fewer_draw_fewer():
    rng = np.random.default_rng(1)
    for _ in range(50):
        norms = rng.lognormal(0.0, 1.0, 50)
        exact = capped_inclusion(norms, 10)
        np.testing.assert_allclose(approximate_inclusion(norms, 10, 8)[0], exact, atol=1e-12)
        assert approximate_inclusion(norms, 10, 0)[0].sum() <= 10.0 + 1e-12
    assert approximate_inclusion(np.zeros(4), 2, 4)[0].tolist() == [0.5] * 4
    assert approximate_inclusion(np.array([1.0, 0.0, 0.0]), 2, 4)[0].tolist() == [1.0, 0.0, 0.0]
    assert capped_inclusion(np.zeros(4), 2).tolist() == [0.5] * 4


def test_all_uploads_are_full_participation_and_what_is_sent_is_counted():
    problem = regression()
    everybody = simulate(problem, FedAvg(**{**SOME, "num_active": 4}), rounds=9).params
    for method in (OCS, AOCS):
        found = simulate(problem, method(**{**SOME, "num_active": 4}), rounds=9).params
        np.testing.assert_allclose(found, everybody, rtol=1e-12)
    for loops, method in ((0, OCS(**SOME)), (1, AOCS(loops=1, **SOME))):
        agents = agents_of(method)
        before = agents.ledger.scalars_up
        # The first and the third send their changes.
        agents.stream = lambda *_, **__: Points([0.0, 1.0, 0.0, 1.0])  # type: ignore[method-assign]
        method.round(method.start(agents, START), agents, 0)
        ledger = agents.ledger
        assert (ledger.models_down, ledger.models_up) == (4, 2)
        assert ledger.scalars_up - before == 4 * (1 + 2 * loops)
        assert ledger.scalars_down == 4 * (1 + loops)
        assert ledger.gradients == 4 * 2 * 2


def test_some_available_agents_work_and_stay_unbiased(monkeypatch):
    """n = 3 of 4 available: over the sets of three, and over the coins of each."""
    method = OCS(available=3, **FULL)
    agents = agents_of(method)
    state, changes, mean = method.start(agents, START), changes_at(START), np.zeros(3)
    lengths = np.linalg.norm(changes, axis=1)
    for there in itertools.combinations(range(4), 3):
        chances = np.zeros(4)
        chances[list(there)] = capped_inclusion(lengths[list(there)], 2)
        monkeypatch.setattr(
            "isfed.methods.uniform_samplers.draw_uniformly",
            lambda *_, t=there, **__: np.array(t),
        )
        mean += mean_over_coins(method, agents, state, chances, monkeypatch) / 4
    np.testing.assert_allclose(mean - START, changes.mean(axis=0), atol=1e-12)
    with pytest.raises(ValueError, match="available=1"):
        OCS(available=1, **SOME)


def test_the_clock_of_ocs_waits_for_all_norms_and_then_for_the_uploads():
    method = OCS(**SOME)
    agents = agents_of(method)
    agents.use_clock(Clock(rate=(1.0, 50.0), latency=0.25))
    points = Points([0.0, 1.0, 1.0, 1.0])
    facts, everybody = agents.facts(), np.arange(4)
    _ = agents.messages  # made before the stream is replaced
    agents.stream = lambda *_, **__: points  # type: ignore[method-assign]
    method.round(method.start(agents, START), agents, 0)
    times = agents.times(everybody, facts.local_steps * facts.batch_size, 0)
    expected = (times.download + times.compute).max() + 0.25 + times.upload[0]
    np.testing.assert_allclose(agents.ledger.seconds, expected, rtol=1e-12)


def test_kvib_at_its_ends():
    heard = np.array([4.0, 1.0, 9.0, 0.25])
    uniform = CumulativeNorms(2, horizon=1, regulariser=0.1)
    np.testing.assert_allclose(uniform.inclusion(SumsState(heard), 4), 0.5)  # theta = 1
    strong = CumulativeNorms(2, horizon=10**6, regulariser=1e12)
    np.testing.assert_allclose(strong.inclusion(SumsState(heard), 4), 0.5, rtol=1e-9)
    # Frozen norms: after many rounds each sum is T times a square, and T grows without end.
    endless = CumulativeNorms(2, horizon=10**18, regulariser=1e-30)
    found = endless.inclusion(SumsState(1e6 * heard), 4)
    np.testing.assert_allclose(found, capped_inclusion(np.sqrt(heard), 2), atol=2e-6)
    plain = CumulativeNorms(2, horizon=10**18, regulariser=1e-30, root=False)
    found = plain.inclusion(SumsState(heard), 4)
    np.testing.assert_allclose(found, capped_inclusion(heard, 2), atol=2e-6)


def test_kvib_adds_what_it_hears():
    method = KVib(horizon=100, regulariser=1e-4, **FULL)
    agents = agents_of(method)
    state = method.start(agents, START)
    chances = method.federated.sampler.inclusion(state.sampler, 4)
    drawn = agents.stream(Purpose.AGENTS, 0).uniforms(4) < chances
    lengths = np.linalg.norm(changes_at(START), axis=1) / 4
    state = method.round(state, agents, 0)
    np.testing.assert_allclose(state.sampler.heard, drawn * lengths**2 / chances, rtol=1e-12)


def literal_floor(weights, alpha):
    """Raise 0, 1, 2, ... of the smallest to alpha / K until the others are above it."""
    count = len(weights)
    order = sorted(range(count), key=lambda k: weights[k])
    for raised in range(count):
        rest = sum(weights[k] for k in order[raised:])
        found = {k: alpha / count for k in order[:raised]}
        for k in order[raised:]:
            found[k] = weights[k] / rest * (1 - alpha * raised / count)
        if min(found.values()) >= alpha / count - 1e-15:
            return np.array([found[k] for k in range(count)])
    raise AssertionError


def test_the_projection_of_osmd():
    rng = np.random.default_rng(2)
    for _ in range(100):
        weights, alpha = rng.lognormal(0.0, 2.0, 7), rng.uniform(0.01, 0.99)
        np.testing.assert_allclose(floored(weights, alpha), literal_floor(weights, alpha), 1e-12)
    np.testing.assert_allclose(floored(np.array([1e-300, 1.0, 3.0]), 1.0), 1 / 3)


def test_osmd_by_the_letter():
    """One expert, then the experts of adaptive OSMD, each written out over draws."""
    rng, count, num, alpha, horizon = np.random.default_rng(4), 6, 3, 0.4, 50
    heard = rng.uniform(0.5, 2.0, count)
    sampler = MirrorDescent(num, horizon, alpha, rate=1e-3)
    state = sampler.init(agents_facts(count), None, START)  # type: ignore[arg-type]
    prob = np.full(count, 1 / count)
    for _ in range(5):
        draws = rng.integers(0, count, num)
        who, times = np.unique(draws, return_counts=True)
        sampler.move(state, who, heard[who], times)
        gradient = np.zeros(count)
        for k in draws:
            gradient[k] += heard[k] / (num**2 * prob[k] ** 3)
        prob = literal_floor(prob * np.exp(1e-3 * gradient), alpha)
        np.testing.assert_allclose(state.prob, prob, rtol=1e-12)
    adaptive = MirrorDescent(num, horizon, alpha)
    state = adaptive.init(agents_facts(count), None, START)  # type: ignore[arg-type]
    state.first[:] = heard.mean(), heard.max()
    ratio = (np.log(count) + 4 * (horizon - 1) * np.log(count / alpha)) / np.log(count)
    experts = int(np.ceil(0.5 * np.log2(ratio))) + 1
    assert state.learned.shape == (experts, count)
    base = num**2 * alpha**3 / (count**3 * heard.max()) * np.sqrt(np.log(count) / (2 * horizon))
    theta = np.array([1 / (e * (e + 1)) for e in range(1, experts + 1)])
    theta, own = theta / theta.sum(), np.full((experts, count), 1 / count)
    for _ in range(5):
        draws, mean = rng.integers(0, count, num), theta @ own
        np.testing.assert_allclose(state.prob, mean / mean.sum(), rtol=1e-12)
        who, times = np.unique(draws, return_counts=True)
        adaptive.move(state, who, heard[who], times)
        cost = np.zeros(experts)
        for e in range(experts):
            gradient = np.zeros(count)
            for k in draws:
                cost[e] += heard[k] / (num**2 * own[e, k] * mean[k])
                gradient[k] += heard[k] / (num**2 * own[e, k] ** 2 * mean[k])
            own[e] = literal_floor(own[e] * np.exp(2**e * base * gradient), alpha)
        theta = theta * np.exp(-alpha / count * np.sqrt(8 * num / (horizon * heard.max())) * cost)
        theta /= theta.sum()


def agents_facts(count):
    problem = regression(sizes=tuple(range(3, 3 + count)))
    return agents_of(FedAvg(**SOME), problem).facts()


def test_mabs_and_vrb_by_the_letter():
    rng, count, alpha, horizon = np.random.default_rng(5), 5, 0.4, 30
    heard, first = rng.uniform(0.5, 2.0, count), np.array([1.1, 1.9])
    delta = np.sqrt(alpha**4 * np.log(count) / (horizon * count**5 * first[0]))
    for kind in (bandit_samplers.ExponentialWeights, bandit_samplers.RootOfSums):
        sampler = kind(2, horizon, alpha)
        state = sampler.init(agents_facts(count), None, START)  # type: ignore[arg-type]
        state.first[:] = first
        prob, weights = np.full(count, 1 / count), np.zeros(count)
        for _ in range(6):
            draws = rng.integers(0, count, 2)
            who, times = np.unique(draws, return_counts=True)
            sampler.move(state, who, heard[who], times)
            for k in draws:
                mabs = kind is bandit_samplers.ExponentialWeights
                weights[k] += delta * heard[k] / prob[k] ** 3 if mabs else heard[k] / prob[k]
            mass = np.exp(weights) if mabs else np.sqrt(weights + 1.5 * 1.9 * count / alpha)
            prob = (1 - alpha) * mass / mass.sum() + alpha / count
            np.testing.assert_allclose(state.prob, prob, rtol=1e-12)


def test_bandits_that_draw_uniformly():
    for method in (OSMD, MABS, VRB):
        state = after(method(alpha=1.0, **SOME), agents_of(method(**SOME)), 8)
        np.testing.assert_allclose(state.sampler.prob, 0.25, rtol=1e-12)
    still = OSMD(rate=0.0, **SOME)
    state = after(still, agents_of(still), 8)
    np.testing.assert_allclose(state.sampler.prob, 0.25, rtol=1e-12)


def test_what_a_bandit_asks_once_is_counted():
    sizes = int(regression().data.num_examples.sum())
    for method, asked in ((OSMD(**SOME), 1), (MABS(**SOME), 1), (OSMD(rate=1e-9, **SOME), 0)):
        agents = agents_of(method)
        state = method.round(method.start(agents, START), agents, 0)
        ledger, heard = agents.ledger, agents.ledger.models_up
        assert ledger.models_down == (4 if asked else heard)  # those drawn have the model
        assert ledger.scalars_up == 12 + 4 * asked
        assert ledger.gradients == sizes * asked + heard * 4
        method.round(state, agents, 1)
        assert agents.ledger.scalars_up == 12 + 4 * asked


def test_what_cannot_be_combined_is_refused():
    with pytest.raises(ValueError, match="CumulativeNorms needs weights on the change"):
        Federated(CumulativeNorms(2, 10), LocalSteps(STEP), HorvitzThompson("step"))
    with pytest.raises(ValueError, match="MirrorDescent needs step sizes, which estimator Mean"):
        Federated(MirrorDescent(2, 10), LocalSteps(STEP), Mean())
    Federated(RootOfSums(2, 10, as_coded=True), LocalSteps(STEP), Mean())  # it hears losses
    variates = ControlVariates(Correction("difference"), Uniform(), Deville())
    for sampler in (StratifiedCohort(2), ByDiversity(2)):  # fewer are drawn if few answer
        with pytest.raises(ValueError, match="needs cohorts of fixed size, which sampler"):
            Federated(sampler, LocalSteps(STEP, divide_by_steps=True), variates)
    with pytest.raises(ValueError, match="alpha"):
        OSMD(alpha=0.0, **SOME)
    with pytest.raises(ValueError, match="num_active"):
        simulate(regression(), KVib(**{**SOME, "num_active": 9}), rounds=1)
    state = BanditState(*(np.zeros(1) for _ in range(4)))
    with pytest.raises(NotImplementedError):
        bandit_samplers.Bandit(1, 1).move(state, np.zeros(1, int), np.zeros(1), np.ones(1))


@pytest.mark.parametrize("method", [OCS, AOCS, KVib, OSMD, MABS, VRB])
def test_a_run_with_absences_goes_on_from_its_state(method):
    problem, algorithm = regression(), method(**SOME)
    whole, first, second = (
        make_run(problem, algorithm, repetitions=1, seed=0, clock=Clock(drop=0.5)) for _ in range(3)
    )
    whole.advance(30)
    first.advance(11)
    second.restore({name: values.copy() for name, values in first.state().items()})
    second.round_index = 11
    second.advance(19)
    assert np.array_equal(whole.params, second.params)


def test_every_method_can_be_made_with_its_defaults_and_its_knobs():
    steps = {"steps": 2}
    own: dict[str, dict[str, float]] = {"KAVG": {**steps}, "PeriodicAveraging": {**steps}}
    own["StichSGD"] = {"strong": 1.0, "shift": 80.0, **steps}
    for entry in CATALOGUE:
        assert len(entry.knobs) <= 2
        for place in ("low", "high"):
            knobs = {}
            for knob in entry.knobs:
                value = getattr(knob, place)
                whole = {"whole": int(value), "share of K": max(2, int(10 * value))}
                knobs[knob.name] = whole.get(knob.scale, value)
            options = {**own.get(entry.name, {}), **knobs}
            known = METHODS.options(METHODS[entry.name])
            run = {"step_size": 0.1, "num_active": 2, "horizon": 70}
            run = {key: value for key, value in run.items() if key in known}
            method = METHODS[entry.name](**run, **options)
            assert getattr(method, "horizon", 70) == 70
            assert set(knobs) <= set(known)
