"""DELTA, MIFA, FedAU, Active FL and the variants of Power-of-Choice: rules, ends, costs, bias."""

import itertools
from copy import deepcopy

import numpy as np
import pytest
from small_federations import identical_agents, quadratics, regression

from isfed import (
    DELTA,
    MIFA,
    PAPER,
    ActiveFL,
    Clock,
    Cohort,
    Facts,
    FedAU,
    FedAvg,
    FedProx,
    HorvitzThompson,
    PowerOfChoice,
    Updates,
    simulate,
)
from isfed.base.random_streams import Purpose
from isfed.federation.compiled_agents import CompiledAgents
from isfed.federation.messages import EVERY, Work
from isfed.federation.object_agents import ObjectAgents
from isfed.methods import delta_sampling, uniform_samplers
from isfed.methods.active_fl import ByValue
from isfed.methods.delta_sampling import ByDiversity, OverProbability
from isfed.methods.fedau import Gaps
from isfed.methods.federated import Opened
from isfed.methods.fedvarp import ChangeMemory
from isfed.methods.power_of_choice import LossState
from isfed.simulate.simulate_call import make_run

STEP, START = 0.03, np.array([0.3, -0.2, 0.5])
SOME = {"step_size": STEP, "num_active": 2}
FULL = {**SOME, "local_steps": 1, "full_batch": True}


def agents_of(method, problem=None):
    problem = problem or regression()
    return ObjectAgents(problem, method.rules(problem.num_agents), seed=3, repetition=0)


def changes_at(params):
    return np.array([-STEP * (h @ params - b) for h, b in quadratics(regression())])


def risks_at(problem, params):
    rows = (problem.data.agent(k) for k in range(problem.num_agents))
    ridge = problem.loss.ridge * params @ params
    return np.array([np.mean((y - x @ params) ** 2) + ridge for x, y in rows])


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_delta_is_unbiased(how, monkeypatch):
    method = DELTA(balance=0.9, client_weights=how, **FULL)
    agents = agents_of(method)
    share, changes = agents.facts(how).share(), changes_at(START)
    gradients = -changes / STEP
    mass = 0.9 * share * np.linalg.norm(gradients - share @ gradients, axis=1)
    mass += 0.1 * np.sqrt(share)
    prob, mean = mass / mass.sum(), np.zeros(3)
    for pair in itertools.product(range(4), repeat=2):
        found = []

        def drawn(_, chances, *__, pair=pair, found=found):
            found.append(chances)
            return np.unique(pair, return_counts=True)

        monkeypatch.setattr(delta_sampling, "draw_with_replacement", drawn)
        moved = method.round(method.start(agents, START), agents, 0).params - START
        np.testing.assert_allclose(found[0], prob, rtol=1e-12)
        mean += prob[list(pair)].prod() * moved
    np.testing.assert_allclose(mean, share @ changes, atol=1e-12)


def estimate(estimator, drawn, times, prob):
    """What an estimator makes of changes 1, 2, ..., 6, of which some were drawn."""
    facts = Facts(6, 1, 1, None, None, np.ones(6, int), np.ones(6, int))
    values = np.arange(1.0, 7.0)[drawn, None]
    cohort = Cohort(np.array(drawn), 3, np.array(times, float), prob[drawn])
    count = len(drawn)
    updates = Updates(EVERY, values, np.zeros(count), np.zeros((count, 4)), np.zeros((count, 0)))
    opened = Opened(cohort, np.zeros(1), Work(1.0), ())
    return float(estimator.combine((), opened, updates, facts)[0][0])


def test_successive_draws_with_these_weights_are_biased_and_ours_are_not():
    """The public program's mean of 1, ..., 6 is 4.83; the true one is 3.5."""
    prob = np.array([0.4, 0.3, 0.1, 0.1, 0.05, 0.05])
    coded = ours = 0.0
    for order in itertools.permutations(range(6), 3):
        left, chance = 1.0, 1.0
        for k in order:
            chance, left = chance * prob[k] / left, left - prob[k]
        coded += chance * estimate(OverProbability(), list(order), np.ones(3), prob)
    for draws in itertools.product(range(6), repeat=3):
        who, times = np.unique(draws, return_counts=True)
        weight = prob[list(draws)].prod()
        ours += weight * estimate(HorvitzThompson(), who.tolist(), times, prob)
    assert round(coded, 2) == 4.83
    assert abs(ours - 3.5) < 1e-12


def test_delta_at_its_ends():
    gradients, share = np.random.default_rng(0).standard_normal((5, 3)), np.full(5, 0.2)
    np.testing.assert_allclose(ByDiversity(2, balance=0.0).chances(share, gradients), 0.2)
    same = np.ones((5, 3))
    np.testing.assert_allclose(ByDiversity(2, balance=1.0).chances(share, same), 0.2)
    method = DELTA(**SOME)
    agents = agents_of(method)
    method.round(method.start(agents, START), agents, 0)
    heard, sizes = agents.ledger.models_up - 4, int(agents.sizes.sum())
    assert 1 <= heard <= 2
    assert agents.ledger.models_down == 4  # those drawn have the model
    assert agents.ledger.gradients == sizes + heard * 4
    with pytest.raises(ValueError, match="balance"):
        DELTA(balance=1.5, **SOME)


def test_mifa_by_the_letter_and_biased(monkeypatch):
    method = MIFA(client_weights="size", **FULL)
    agents = agents_of(method)
    share = agents.facts("size").share()
    state, kept, params = method.start(agents, START), np.zeros((4, 3)), START
    for i in range(10):
        drawn = uniform_samplers.draw_uniformly(agents, 2, i)
        kept[drawn] = changes_at(params)[drawn]
        params = params + share @ kept
        state = method.round(state, agents, i)
        np.testing.assert_allclose(state.params, params, rtol=1e-11, atol=1e-14)
    memory, mean = np.random.default_rng(0).standard_normal((4, 3)), np.zeros(3)
    for pair in itertools.combinations(range(4), 2):
        monkeypatch.setattr(
            uniform_samplers, "draw_uniformly", lambda *_, p=pair, **__: np.array(p)
        )
        state = method.start(agents, START)._replace(estimator=ChangeMemory(memory.copy()))
        mean += (method.round(state, agents, 0).params - START) / 6
    assert np.abs(mean - share @ changes_at(START)).max() > 1e-3


@pytest.mark.parametrize("longest", [None, 3])
def test_fedau_by_the_letter(longest):
    method = FedAU(longest=longest, **FULL)
    agents = agents_of(method)
    state, params = method.start(agents, START), START
    gaps: list[list[int]] = [[] for _ in range(4)]
    waited = [0] * 4
    for i in range(40):
        drawn = uniform_samplers.draw_uniformly(agents, 2, i)
        changes, step = changes_at(params), np.zeros(3)
        for k in range(4):
            waited[k] += 1
            if k in drawn:
                step += changes[k] * (np.mean(gaps[k]) if gaps[k] else 1.0) / 4
            if k in drawn or (longest and waited[k] >= longest):
                gaps[k].append(waited[k])
                waited[k] = 0
        params, state = params + step, method.round(state, agents, i)
        np.testing.assert_allclose(state.params, params, rtol=1e-11, atol=1e-14)
    if longest is None:  # the mean gap tends to K / L
        assert all(abs(np.mean(one) - 2.0) < 1.0 for one in gaps)


def test_fedau_is_biased_by_its_estimates(monkeypatch):
    method = FedAU(**FULL)
    agents, mean = agents_of(method), np.zeros(3)
    gaps = Gaps(np.zeros(4, int), np.array([3, 8, 2, 5]), np.array([2, 3, 1, 2]))
    for pair in itertools.combinations(range(4), 2):
        monkeypatch.setattr(
            uniform_samplers, "draw_uniformly", lambda *_, p=pair, **__: np.array(p)
        )
        state = method.start(agents, START)._replace(estimator=deepcopy(gaps))
        mean += (method.round(state, agents, 0).params - START) / 6
    full = changes_at(START).mean(axis=0)
    assert np.linalg.norm(mean - full) > 0.01 * np.linalg.norm(full)


@pytest.mark.parametrize("method", [MIFA, FedAU])
@pytest.mark.parametrize("how", ["uniform", "size"])
def test_with_everybody_it_is_fedavg(method, how):
    options = {"step_size": STEP, "num_active": 4, "client_weights": how}
    found = simulate(regression(), method(**options), rounds=15).params
    expected = simulate(regression(), FedAvg(**options), rounds=15).params
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_cpow_d_asks_for_a_batch():
    problem = regression(sizes=(4, 9, 3, 6, 5))
    method = PowerOfChoice(candidates=3, variant="cpow-d", **{**SOME, "num_active": 1})
    agents = agents_of(method, problem)
    compiled = CompiledAgents(problem, method.rules(5), seed=3, repetition=0)
    sampler, facts = method.federated.sampler, agents.facts()
    for i in range(20):
        points = agents.stream(Purpose.AGENTS, i).uniforms(5)
        order = sorted(range(5), key=lambda k: -np.log(1 - points[k]) / facts.sizes[k])
        losses = {}
        for k in sorted(order[:3]):
            x, y = problem.data.agent(k)
            drawn = [int(u * len(y)) for u in agents.stream(Purpose.RISKS, i, k).uniforms(2)]
            ridge = 0.01 * START @ START
            losses[k] = np.mean([(y[n] - x[n] @ START) ** 2 + ridge for n in drawn])
        worst = max(losses, key=lambda k: losses[k])
        for kind in (agents, compiled):
            before = kind.ledger.as_array()
            assert sampler.draw((), facts, kind, START, i)[0].agents.tolist() == [worst]
            after = dict(zip(vars(kind.ledger), kind.ledger.as_array() - before, strict=True))
            asked = {"models_down": 3, "scalars_up": 3, "forwards": 6}
            assert {name: n for name, n in after.items() if n} == asked


def test_rpow_d_uses_the_last_losses_told():
    problem = PAPER.replace(num_agents=8, num_examples=10).make()
    method = PowerOfChoice(candidates=8, variant="rpow-d", **{**SOME, "num_active": 3})
    agents = CompiledAgents(problem, method.rules(8), seed=1, repetition=0)
    state = method.start(agents, np.ones(problem.num_params))
    told: dict[int, float] = {}
    for i in range(8):
        expected = sorted(range(8), key=lambda k: -told.get(k, np.inf))[:3]
        risks = risks_at(problem, state.params)
        before = agents.ledger.as_array()
        state = method.round(state, agents, i)
        told |= {k: risks[k] for k in expected}
        known = np.array([told.get(k, np.inf) for k in range(8)])
        np.testing.assert_allclose(state.sampler.losses, known, rtol=1e-10)
        after = dict(zip(vars(agents.ledger), agents.ledger.as_array() - before, strict=True))
        assert (after["models_down"], after["scalars_up"], after["forwards"]) == (3, 3, 30)


def test_as_many_candidates_as_work_are_plain_draws_by_size():
    problem = regression()
    expected = simulate(problem, PowerOfChoice(candidates=2, **SOME), rounds=12).params
    for variant in ("cpow-d", "rpow-d"):
        method = PowerOfChoice(candidates=2, variant=variant, **SOME)
        assert np.array_equal(simulate(problem, method, rounds=12).params, expected)
    everybody = PowerOfChoice(candidates=4, **{**SOME, "num_active": 4})
    full = FedAvg(**{**SOME, "num_active": 4})
    found = simulate(problem, everybody, rounds=9).params
    np.testing.assert_allclose(found, simulate(problem, full, rounds=9).params, rtol=1e-12)


@pytest.mark.parametrize("variant", ["cpow-d", "rpow-d"])
def test_the_variants_of_power_of_choice_are_biased(variant):
    """All are candidates; equal losses would choose the first, here the largest are chosen."""
    method = PowerOfChoice(candidates=4, variant=variant, **{**FULL, "num_active": 1})
    agents = agents_of(method)
    state = method.start(agents, START)
    if variant == "rpow-d":
        state = state._replace(sampler=LossState(risks_at(regression(), START)))
    mean = method.round(state, agents, 0).params - START
    full = changes_at(START).mean(axis=0)
    assert np.linalg.norm(mean - full) > 0.01 * np.linalg.norm(full)


def test_active_fl_by_the_letter():
    problem = PAPER.replace(num_agents=12, num_examples=10).make()
    sampler = ByValue(5, drop=0.5, sharpness=2.0, uniform=0.4)
    method = ActiveFL(drop=0.5, sharpness=2.0, uniform=0.4, **{**SOME, "num_active": 5})
    agents = CompiledAgents(problem, method.rules(12), seed=1, repetition=0)
    facts, params = agents.facts(), np.ones(problem.num_params)
    losses = risks_at(problem, params)
    for i in range(30):
        state = LossState(losses.copy())
        found = sampler.draw(state, facts, agents, params, i)[0].agents
        points, value = agents.stream(Purpose.AGENTS, i).uniforms(24), np.sqrt(10) * losses
        best = sorted(range(12), key=lambda k: value[k])[6:]
        times = {k: -np.log(1 - points[k]) / np.exp(2.0 * (value[k] - value.max())) for k in best}
        chosen = sorted(best, key=lambda k: times[k])[:3]
        rest = [k for k in range(12) if k not in chosen]
        chosen += sorted(rest, key=lambda k: points[12 + k])[:2]
        assert found.tolist() == sorted(chosen)


def test_active_fl_asks_all_once_and_can_be_uniform():
    problem = PAPER.replace(num_agents=8, num_examples=10).make()
    method = ActiveFL(**{**SOME, "num_active": 3})
    agents = CompiledAgents(problem, method.rules(8), seed=1, repetition=0)
    state = method.round(method.start(agents, np.zeros(problem.num_params)), agents, 0)
    ledger = agents.ledger
    assert (ledger.models_down, ledger.models_up) == (8, 3)
    assert ledger.forwards == 80 + 30
    method.round(state, agents, 1)
    assert (agents.ledger.models_down, agents.ledger.forwards) == (11, 140)
    for options in ({"uniform": 1.0}, {"drop": 0.0, "sharpness": 0.0}):
        sampler, counts = ByValue(3, **options), np.zeros(8)
        state = LossState(np.linspace(1.0, 9.0, 8))
        for i in range(3000):
            drawn = sampler.draw(state, agents.facts(), agents, np.zeros(2), i)[0].agents
            counts[drawn] += 1
        share = 3 / 8
        assert (np.abs(counts / 3000 - share) < 4.5 * np.sqrt(share * (1 - share) / 3000)).all()


def test_active_fl_is_biased():
    method = ActiveFL(uniform=0.0, drop=0.5, **FULL)  # the two largest risks, always
    agents = agents_of(method)
    mean = method.round(method.start(agents, START), agents, 0).params - START
    full = changes_at(START).mean(axis=0)
    assert np.linalg.norm(mean - full) > 0.01 * np.linalg.norm(full)


def test_identical_agents_make_all_of_them_fedavg():
    """Where agents do not differ it does not matter who is heard."""
    problem = identical_agents()
    expected = simulate(problem, FedProx(prox=0.0, **FULL), rounds=8).params
    variants = [PowerOfChoice(variant=v, **FULL) for v in ("pow-d", "cpow-d", "rpow-d")]
    for method in (*variants, ActiveFL(**FULL), DELTA(balance=1.0, **FULL)):
        found = simulate(problem, method, rounds=8).params
        np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=method.name)


CASES = [
    DELTA(**SOME), DELTA(as_coded=True, **SOME), MIFA(**SOME), FedAU(longest=5, **SOME),
    ActiveFL(**SOME), PowerOfChoice(variant="rpow-d", candidates=3, **SOME),
    PowerOfChoice(variant="cpow-d", candidates=3, **SOME),
]  # fmt: skip


@pytest.mark.parametrize("algorithm", CASES, ids=lambda method: method.name)
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
