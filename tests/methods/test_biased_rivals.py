"""Oort, DivFL and FedSTaS: whom they choose, against the rules written out, and their ends."""

import itertools

import numpy as np
import pytest
from small_federations import identical_agents, quadratics, regression

from isfed import PAPER, Clock, DivFL, FedAvg, FedProx, FedSTaS, Oort, simulate
from isfed.federation.compiled_agents import CompiledAgents
from isfed.federation.object_agents import ObjectAgents
from isfed.methods import fedstas
from isfed.methods.change_norms import capped_inclusion
from isfed.methods.divfl import stand_for_all
from isfed.methods.fedstas import StratifiedCohort, places_of_strata, strata_of_points
from isfed.sampling.designs import Deville
from isfed.sampling.designs.outcomes import outcomes
from isfed.simulate.simulate_call import make_run

STEP, START = 0.03, np.array([0.3, -0.2, 0.5])
SOME = {"step_size": STEP, "num_active": 2}
FULL = {**SOME, "local_steps": 1, "full_batch": True}


def agents_of(method, problem=None):
    problem = problem or regression()
    return ObjectAgents(problem, method.rules(problem.num_agents), seed=3, repetition=0)


def changes_at(params):
    return np.array([-STEP * (h @ params - b) for h, b in quadratics(regression())])


def many(method, agents=30):
    problem = PAPER.replace(num_agents=agents, num_examples=10).make()
    found = CompiledAgents(problem, method.rules(agents), seed=1, repetition=0)
    return found, method.federated.sampler


def test_oort_visits_everybody_first_and_then_prefers_utility():
    method = Oort(penalty=0.0, overcommit=1.0, step_size=0.01, num_active=5)
    agents, sampler = many(method)
    state = method.start(agents, np.zeros(agents.num_params))
    for i in range(40):
        before = state.sampler.last.copy()
        state = method.round(state, agents, i)
        fresh = int(((before == 0) & (state.sampler.last == i + 1)).sum())
        if (before == 0).sum() >= 5 and i == 0:
            assert fresh == 5  # nobody was heard: all places go to new agents
    assert (state.sampler.last > 0).all()
    assert state.sampler.pace[1] == 0.0  # nobody is left to explore
    kept = state.sampler
    kept.utility[:] = 1.0
    kept.utility[:6] = 1000.0, 999.0, 998.0, 997.0, 996.0, 995.0
    kept.last[:] = 40
    for _ in range(20):
        points = np.random.default_rng(_).random(60)
        assert set(sampler.select(kept, points, 5, 41)) <= set(range(6))


@pytest.mark.parametrize("version", ["oort", "fedscale"])
def test_the_score_of_oort_by_the_letter(version):
    method = Oort(version=version, step_size=0.01, num_active=5)
    agents, sampler = many(method)
    agents.use_clock(Clock(rate=(1.0, 100.0)))
    state = method.start(agents, np.zeros(agents.num_params)).sampler
    rng = np.random.default_rng(0)
    state.utility[:] = rng.lognormal(0.0, 1.0, 30)
    state.last[:20] = rng.integers(1, 50, 20)
    clip, percentile = (0.98, 10.0) if version == "oort" else (0.9, 30.0)
    ranked, times = sorted(state.utility), sorted(state.duration)
    preferred = times[int(30 * percentile / 100)]
    found = sampler.scores(state, 50)
    for k in range(30):
        score = state.utility[k]
        if k < 20:
            low = 0.999 * ranked[0]
            score = (min(score, ranked[int(30 * clip)]) - low) / (ranked[-1] - low)
            score += np.sqrt(0.1 * np.log(50) / state.last[k])
        if state.duration[k] > preferred:
            score *= (preferred / state.duration[k]) ** 2
        np.testing.assert_allclose(found[k], score, rtol=1e-12)


def test_the_pacer_of_oort():
    _, sampler = many(method := Oort(step_size=0.01, num_active=5))
    agents, _ = many(method)
    state = method.start(agents, np.zeros(agents.num_params)).sampler
    state.exploited[:] = state.heard[:] = True
    for number in range(1, 81):  # utilities stay the same: at 40, 60 and 80 it relaxes
        sampler._pace(state, number)
        assert state.pace[0] == 10.0 + 5.0 * max(0, number // 20 - 1)
    state.utility[:] *= 100.0
    for number in range(81, 101):
        sampler._pace(state, number)
    assert state.pace[0] == 20.0


def test_oort_asks_more_than_it_uses_and_drops_the_last():
    method = Oort(overcommit=1.5, step_size=0.01, num_active=4)
    agents, _ = many(method)
    agents.use_clock(Clock(rate=(1.0, 100.0), latency=0.1))
    federated = method.federated
    state = federated.start(agents, np.zeros(agents.num_params))
    opened = federated.open(state, agents, 0)
    seconds = agents.ledger.seconds
    state, info = federated.step(state, agents, 0)
    times = agents.times(info.cohort.agents, federated.local.examples_of(
        info.cohort.agents, agents.facts()), 0).total  # fmt: skip
    order = np.argsort(times, kind="stable")
    assert info.cohort.agents.size == 6
    assert set(np.flatnonzero(info.cohort.times)) == set(order[:4])
    used = np.sort(order[:4])
    np.testing.assert_allclose(state.params, info.updates.change[used].mean(axis=0), rtol=1e-12)
    assert agents.ledger.models_up == 6
    np.testing.assert_allclose(seconds, times[order[3]], rtol=1e-12)
    assert np.array_equal(opened.cohort.agents, info.cohort.agents)
    late = info.cohort.agents[order[4:]]
    mean = state.sampler.utility[info.cohort.agents[used]].mean()
    np.testing.assert_allclose(state.sampler.utility[late], mean)


def test_oort_that_explores_only_is_uniform_over_new_agents():
    method = Oort(explore=1.0, penalty=0.0, overcommit=1.0, step_size=0.01, num_active=3)
    agents, sampler = many(method)
    counts = np.zeros(30)
    for i in range(4000):
        state = sampler.init(agents.facts(), agents, np.zeros(2))
        state.utility[:] = 1.0
        counts[sampler.draw(state, agents.facts(), agents, np.zeros(2), i)[0].agents] += 1
    # Of equal utilities, the first 15 are the window; inside it all have the same chance.
    share = counts[:15] / 4000
    assert (np.abs(share - 0.2) < 4.5 * np.sqrt(0.16 / 4000)).all()
    assert not counts[15:].any()


def literal_greedy(distances, num):
    chosen = []
    for _ in range(num):
        costs = {}
        for j in range(len(distances)):
            if j not in chosen:
                costs[j] = sum(min(row[s] for s in [*chosen, j]) for row in distances)
        chosen.append(min(costs, key=lambda j: costs[j]))
    return chosen


def test_divfl_is_greedy_and_finds_one_of_each_group():
    rng = np.random.default_rng(3)
    for _ in range(20):
        points = rng.standard_normal((9, 3))
        far = np.linalg.norm(points[:, None] - points[None], axis=2)
        assert stand_for_all(far, 4).tolist() == literal_greedy(far, 4)
    groups = np.repeat(100.0 * rng.standard_normal((3, 2)), 4, axis=0)
    points = groups + 0.01 * rng.standard_normal((12, 2))
    chosen = stand_for_all(np.linalg.norm(points[:, None] - points[None], axis=2), 3)
    assert sorted(k // 4 for k in chosen) == [0, 1, 2]
    assert stand_for_all(np.zeros((5, 5)), 2).tolist() == [0, 1]


@pytest.mark.parametrize("weights", ["facility", "size"])
def test_divfl_by_the_letter_and_biased(weights):
    method = DivFL(weights=weights, **FULL)
    agents = agents_of(method)
    known, params = -changes_at(START) / STEP, START
    state, sizes = method.start(agents, START), agents.sizes
    for i in range(8):
        far = np.linalg.norm(known[:, None] - known[None], axis=2)
        chosen = sorted(literal_greedy(far, 2))
        near = [min(chosen, key=lambda j, i=i: far[i][j]) for i in range(4)]
        counts = np.array([near.count(j) for j in chosen]) if weights == "facility" else None
        counts = sizes[chosen] if counts is None else counts
        changes = changes_at(params)
        step = counts / counts.sum() @ changes[chosen]
        if i == 0:
            full = changes.mean(axis=0)
            assert np.linalg.norm(step - full) > 0.01 * np.linalg.norm(full)
        known[chosen] = -changes[chosen] / STEP
        params, state = params + step, method.round(state, agents, i)
        np.testing.assert_allclose(state.params, params, rtol=1e-10, atol=1e-13)
    # K models and gradients once; then L each way, of which the first L had the model.
    assert agents.ledger.models_down == 4 + 7 * 2
    assert agents.ledger.models_up == 4 + 8 * 2


def test_divfl_that_asks_all_is_charged_for_it():
    method = DivFL(ask_all=True, **FULL)
    agents = agents_of(method)
    state = method.start(agents, START)
    for i in range(3):
        state = method.round(state, agents, i)
    assert (agents.ledger.models_down, agents.ledger.models_up) == (3 * 4, 3 * 6)


def test_strata_and_their_places():
    rng = np.random.default_rng(1)
    middles = 50.0 * rng.standard_normal((3, 2))
    points = np.repeat(middles, [5, 3, 2], axis=0) + 0.1 * rng.standard_normal((10, 2))
    stratum = strata_of_points(points, 3)
    assert stratum.tolist() == [0] * 5 + [1] * 3 + [2] * 2
    for num in range(3, 11):
        places = places_of_strata(stratum, points, num)
        assert places.sum() == num
        assert (places >= 1).all()
        assert (places <= [5, 3, 2]).all()
    assert strata_of_points(np.zeros((4, 2)), 3).tolist() == [0] * 4


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_fedstas_is_unbiased_and_with_plain_weights_it_is_not(how, monkeypatch):
    share, changes = None, changes_at(START)
    for weights in ("inverse", "plain"):
        method = FedSTaS(strata=1, sketch=3, weights=weights, client_weights=how, **FULL)
        agents, seen = agents_of(method), []

        def found(inclusion, *_, seen=seen):
            seen.append(inclusion)
            return np.arange(2)

        share = agents.facts(how).share()
        monkeypatch.setattr(Deville, "draw", lambda self, *given, f=found: f(*given))
        method.round(method.start(agents, START), agents, 0)
        inclusion, mean = seen[0], np.zeros(3)
        for units, chance in outcomes(Deville(), inclusion):
            monkeypatch.setattr(Deville, "draw", lambda self, *_, u=units: np.array(u))
            mean += chance * (method.round(method.start(agents, START), agents, 0).params - START)
        difference = np.abs(mean - share @ changes).max()
        assert difference < 1e-12 if weights == "inverse" else difference > 1e-4


def test_fedstas_over_two_strata_is_unbiased(monkeypatch):
    method = FedSTaS(strata=2, sketch=3, **{**FULL, "num_active": 3})
    agents = agents_of(method)
    sampler, calls = method.federated.sampler, []

    def split(self, points, scores):
        stratum = np.array([0, 1, 0, 0])
        chances = np.ones(4)
        chances[[0, 2, 3]] = capped_inclusion(scores[[0, 2, 3]], 2)
        calls.append(chances)
        return stratum, chances

    monkeypatch.setattr(fedstas.StratifiedCohort, "inclusion", split)
    method.round(method.start(agents, START), agents, 0)
    mean = np.zeros(3)
    for units, chance in outcomes(Deville(), calls[0][[0, 2, 3]]):
        draws = itertools.cycle([np.array(units), np.array([0])])
        monkeypatch.setattr(Deville, "draw", lambda self, *_, d=draws: next(d))
        mean += chance * (method.round(method.start(agents, START), agents, 0).params - START)
    np.testing.assert_allclose(mean, changes_at(START).mean(axis=0), atol=1e-12)
    assert sampler.strata == 2


def test_one_stratum_is_a_draw_of_fixed_size_by_length_and_is_charged():
    method = FedSTaS(strata=1, sketch=4, step_size=0.01, num_active=5)
    agents, sampler = many(method)
    rng = np.random.default_rng(0)
    points, scores = rng.standard_normal((30, 4)), rng.random(30)
    assert isinstance(sampler, StratifiedCohort)
    np.testing.assert_allclose(
        sampler.inclusion(points, scores)[1], capped_inclusion(scores, 5), rtol=1e-12
    )
    before = agents.ledger.scalars_up
    method.round(method.start(agents, np.zeros(agents.num_params)), agents, 0)
    ledger = agents.ledger
    assert (ledger.models_down, ledger.models_up) == (30, 5)
    assert ledger.scalars_up - before == 30 * 4


@pytest.mark.parametrize("kind", [DivFL, FedSTaS])
def test_with_everybody_it_is_fedavg(kind):
    options = {"step_size": STEP, "num_active": 4}
    found = simulate(regression(), kind(**options), rounds=12).params
    expected = simulate(regression(), FedAvg(**options), rounds=12).params
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_identical_agents_make_all_of_them_fedavg():
    expected = simulate(identical_agents(), FedProx(prox=0.0, **FULL), rounds=8).params
    for method in (Oort(**FULL), DivFL(**FULL), FedSTaS(strata=1, **FULL)):
        found = simulate(identical_agents(), method, rounds=8).params
        np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=method.name)


def test_oort_is_biased():
    """Heard agents with equal times: the largest utility is drawn nearly always."""
    method = Oort(penalty=0.0, overcommit=1.0, **{**FULL, "num_active": 1})
    agents = agents_of(method)
    state = method.start(agents, START)
    state.sampler.last[:] = 1
    state.sampler.utility[:] = 1e-6, 1.0, 1e-6, 1e-6
    moved = [method.round(state, agents, i).params - START for i in (1, 2, 3)]
    full = changes_at(START).mean(axis=0)
    assert np.linalg.norm(np.mean(moved, axis=0) - full) > 0.01 * np.linalg.norm(full)


@pytest.mark.parametrize("algorithm", [Oort(**SOME), DivFL(**SOME), FedSTaS(**SOME)],
                         ids=lambda method: method.name)  # fmt: skip
def test_a_run_with_absences_goes_on_from_its_state(algorithm):
    whole, first, second = (
        make_run(regression(), algorithm, repetitions=1, seed=0, clock=Clock(drop=0.5))
        for _ in range(3)
    )
    whole.advance(30)
    first.advance(11)
    second.restore({name: values.copy() for name, values in first.state().items()})
    second.round_index = 11
    second.advance(19)
    assert np.array_equal(whole.params, second.params)
