"""Options that follow a public program where it differs from its paper, against slow loops."""

import itertools
from typing import Any

import numpy as np
import pytest
from small_federations import quadratics, regression

from isfed import MABS, OSMD, SCAFFOLD, VRB, Clock, FedAU, FedAvg, PowerOfChoice, simulate
from isfed.base.random_streams import Purpose
from isfed.federation.object_agents import ObjectAgents
from isfed.methods import uniform_samplers
from isfed.methods.federated import Evidence
from isfed.simulate.simulate_call import make_run

STEP, START = 0.03, np.array([0.3, -0.2, 0.5])
SOME: dict[str, Any] = {"step_size": STEP, "num_active": 2}
ALPHA, HORIZON = 0.4, 40


def agents_of(method, problem):
    return ObjectAgents(problem, method.rules(problem.num_agents), seed=3, repetition=0)


def six():
    """Six agents with batches of 1 to 6 examples."""
    return regression(sizes=(6, 7, 8, 9, 10, 11), local_steps=1, batch_size=[1, 2, 3, 4, 5, 6])


def risks_at(problem, params):
    rows = (problem.data.agent(k) for k in range(problem.num_agents))
    return [np.mean((y - x @ params) ** 2) + 0.01 * params @ params for x, y in rows]


def rounds_of(method, problem, count):
    """For every round the model before it, each draw's agent, and its mean gradient and batch."""
    agents, parts = agents_of(method, problem), method.federated
    state = parts.start(agents, START)
    for i in range(count):
        before = state.params
        state, info = parts.step(state, agents, i)
        draws = np.repeat(info.cohort.agents, info.cohort.times.astype(int))
        gradient = dict(zip(info.cohort.agents.tolist(), -info.updates.change / STEP, strict=True))
        yield before, draws.tolist(), gradient, state.sampler


def projected(weights):
    """The smallest are raised to alpha / K, as few as it takes; the others share the rest."""
    count, order = len(weights), np.argsort(weights)
    for raised in range(count):
        out = np.full(count, ALPHA / count)
        rest = order[raised:]
        out[rest] = weights[rest] / weights[rest].sum() * (1 - ALPHA * raised / count)
        if out.min() >= ALPHA / count - 1e-15:
            return out
    raise AssertionError


def test_osmd_hears_sums_over_batches_and_steps_once_for_an_agent():
    problem, count, num = six(), 6, 4
    method = OSMD(as_coded=True, alpha=ALPHA, horizon=HORIZON, step_size=STEP, num_active=num)
    at_start = [np.linalg.norm(h @ START - b) / count for h, b in quadratics(problem)]
    most = max(at_start) ** 2
    ratio = (np.log(count) + 4 * (HORIZON - 1) * np.log(count / ALPHA)) / np.log(count)
    experts = int(np.ceil(0.5 * np.log2(ratio))) + 1
    least = num**2 * ALPHA**3 / (count**3 * most) * np.sqrt(np.log(count) / (2 * HORIZON))
    gain = ALPHA / count * np.sqrt(8 * num / (HORIZON * most))
    theta = np.array([1 / (e * (e + 1)) for e in range(1, experts + 1)])
    theta, own = theta / theta.sum(), np.full((experts, count), 1 / count)
    repeated = 0
    for _, draws, gradient, found in rounds_of(method, problem, 12):
        prob, cost = theta @ own, np.zeros(experts)
        for e in range(experts):
            slope = np.zeros(count)
            for k in draws:
                heard = (np.linalg.norm((k + 1) * gradient[k]) / count) ** 2  # B_k = k + 1
                cost[e] += heard / (num**2 * own[e, k] * prob[k])
                slope[k] = -heard / (num**2 * own[e, k] ** 2 * prob[k])  # not added up
            own[e] = projected(own[e] * np.exp(-(2**e) * least * slope))
        theta = theta * np.exp(-gain * cost)
        theta = theta / theta.sum() if theta.sum() > 0 else np.full(experts, 1 / experts)
        repeated += len(draws) > len(set(draws))
        np.testing.assert_allclose(found.prob, theta @ own, rtol=1e-9)
    assert repeated > 2


def test_mabs_hears_sums_over_batches():
    problem, count = six(), 6
    method = MABS(as_coded=True, alpha=ALPHA, horizon=HORIZON, step_size=STEP, num_active=4)
    squares = [(np.linalg.norm(h @ START - b) / count) ** 2 for h, b in quadratics(problem)]
    delta = np.sqrt(ALPHA**4 * np.log(count) / (HORIZON * count**5 * np.mean(squares)))
    prob, weights = np.full(count, 1 / count), np.zeros(count)
    for _, draws, gradient, found in rounds_of(method, problem, 12):
        for k in draws:
            heard = (np.linalg.norm((k + 1) * gradient[k]) / count) ** 2
            weights[k] += delta * heard / prob[k] ** 3
        mass = np.exp(weights - weights.max())
        prob = (1 - ALPHA) * mass / mass.sum() + ALPHA / count
        np.testing.assert_allclose(found.prob, prob, rtol=1e-10)


def test_sums_over_batches_need_their_sizes():
    method = OSMD(as_coded=True, **SOME)
    agents = agents_of(method, six())
    parts, facts = method.federated, agents.facts()._replace(batch_size=None)
    opened = parts.open(parts.start(agents, START), agents, 0)
    updates = agents.train(opened.cohort, opened.sent, opened.work, 0)
    evidence = Evidence(updates.score, updates.change, np.full(len(updates.change), STEP))
    with pytest.raises(ValueError, match="MirrorDescent learn from sums over batches"):
        parts.sampler.learn(opened.sampler, opened.cohort, updates, evidence, facts, 0)


def test_vrb_hears_losses():
    problem, count = six(), 6
    method = VRB(as_coded=True, alpha=ALPHA, horizon=HORIZON, step_size=STEP, num_active=4)
    bound = 1.5 * max(risks_at(problem, START)) ** 2 * count / ALPHA
    prob, weights = np.full(count, 1 / count), np.zeros(count)
    for before, draws, _, found in rounds_of(method, problem, 12):
        risks = risks_at(problem, before)
        for k in draws:
            weights[k] += risks[k] ** 2 / prob[k]
        mass = np.sqrt(weights + bound)
        prob = (1 - ALPHA) * mass / mass.sum() + ALPHA / count
        np.testing.assert_allclose(found.prob, prob, rtol=1e-10)
    agents = agents_of(method, problem)
    method.round(method.start(agents, START), agents, 0)
    assert agents.ledger.gradients == sum(k + 1 for k in rounds_first(method, problem))
    assert agents.ledger.forwards > int(problem.data.num_examples.sum())  # all, and those drawn


def rounds_first(method, problem):
    """Who works in the first round."""
    return set(next(rounds_of(method, problem, 1))[1])


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_fedau_with_known_probabilities_is_unbiased(how, monkeypatch):
    problem = regression(local_steps=1)
    method = FedAU(known_prob=True, full_batch=True, client_weights=how, **SOME)
    agents, mean = agents_of(method, problem), np.zeros(3)
    share = agents.facts(how).share()
    changes = np.array([-STEP * (h @ START - b) for h, b in quadratics(problem)])
    for pair in itertools.combinations(range(4), 2):
        monkeypatch.setattr(
            uniform_samplers, "draw_uniformly", lambda *_, p=pair, **__: np.array(p)
        )
        moved = method.round(method.start(agents, START), agents, 0).params - START
        literal = sum(share[k] * changes[k] / 0.5 for k in pair)  # two of four
        np.testing.assert_allclose(moved, literal, rtol=1e-12)
        mean += moved / 6
    np.testing.assert_allclose(mean, share @ changes, atol=1e-12)


@pytest.mark.parametrize("divide", [False, True])
def test_scaffold_whose_variates_begin_at_the_model(divide):
    problem = regression(local_steps=[1, 2, 3, 4])
    method = SCAFFOLD(as_coded=True, full_batch=True, divide_by_steps=divide, **SOME)
    agents, pieces = agents_of(method, problem), quadratics(problem)
    state, w, v = method.start(agents, START), START, np.zeros(3)
    own: dict[int, np.ndarray] = {}
    for i in range(10):
        models, moves = [], []
        for k in uniform_samplers.draw_uniformly(agents, 2, i).tolist():
            (h, b), x, steps = pieces[k], w.copy(), int(problem.local_steps[k])
            kept, step = own.get(k, w), STEP / steps if divide else STEP
            for _ in range(steps):
                x = x - step * (h @ x - b + v - kept)
            own[k] = kept - v + (w - x) / (step * steps)
            models.append(x)
            moves.append(own[k] - kept)
        w, v = np.mean(models, axis=0), v + np.sum(moves, axis=0) / 4
        state = method.round(state, agents, i)
        np.testing.assert_allclose(state.params, w, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(state.estimator.control, v, rtol=1e-10, atol=1e-12)
    plain = SCAFFOLD(full_batch=True, **SOME)
    found = plain.round(plain.start(agents, START), agents, 0).params
    first = method.round(method.start(agents, START), agents, 0).params
    assert np.linalg.norm(found - first) > 1e-3


def test_power_of_choice_that_counts_sizes_twice():
    problem, sizes = regression(local_steps=1), np.array([4, 9, 3, 6])
    method = PowerOfChoice(candidates=3, as_coded=True, full_batch=True, **SOME)
    agents = agents_of(method, problem)
    risks, pieces = risks_at(problem, START), quadratics(problem)
    for i in range(12):
        points = agents.stream(Purpose.AGENTS, i).uniforms(4)
        asked = sorted(range(4), key=lambda k: -np.log(1 - points[k]) / sizes[k])[:3]
        worst = sorted(asked, key=lambda k: -risks[k])[:2]
        changes = [-STEP * (pieces[k][0] @ START - pieces[k][1]) for k in worst]
        moved = method.round(method.start(agents, START), agents, i).params - START
        expected = sizes[worst] @ np.array(changes) / sizes[worst].sum()
        np.testing.assert_allclose(moved, expected, rtol=1e-11)


CODED = [
    *(kind(as_coded=True, **SOME) for kind in (OSMD, MABS, VRB, SCAFFOLD, PowerOfChoice)),
    FedAU(known_prob=True, **SOME),
]


@pytest.mark.parametrize("algorithm", CODED, ids=lambda method: method.name)
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


def test_with_everybody_known_probabilities_are_fedavg():
    options = {**SOME, "num_active": 4}
    found = simulate(regression(), FedAU(known_prob=True, **options), rounds=12).params
    expected = simulate(regression(), FedAvg(**options), rounds=12).params
    np.testing.assert_allclose(found, expected, rtol=1e-11)
