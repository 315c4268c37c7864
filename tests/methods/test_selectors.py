"""Checks named in the specification of FedCS, Hybrid-FL, FOLB, agnostic learning and q-FFL."""

import itertools

import numpy as np
import pytest
from small_federations import quadratics, regression

from isfed import (
    FOLB,
    AgnosticFL,
    Clock,
    FedCS,
    FederatedData,
    HybridFL,
    LeastSquares,
    Problem,
    QFedAvg,
    simulate,
)
from isfed.base.random_streams import Purpose
from isfed.federation.object_agents import ObjectAgents
from isfed.federation.virtual_clock import Times
from isfed.methods.agnostic_fl import onto_simplex
from isfed.methods.fedcs import greedy_schedule
from isfed.methods.q_ffl import fair_step
from isfed.methods.uniform_samplers import draw_uniformly

SOME = {"step_size": 0.02, "num_active": 3}


def agents_of(algorithm, problem=None):
    problem = regression() if problem is None else problem
    return ObjectAgents(problem, algorithm.rules(problem.num_agents), seed=3, repetition=0)


def random_times(seed, count=8, *, equal_uploads=False):
    rng = np.random.default_rng(seed)
    upload = np.full(count, 0.5) if equal_uploads else rng.exponential(1.0, count)
    return Times(rng.exponential(0.3, count), rng.exponential(3.0, count), upload)


def length_of(times, chosen):
    """The end of a round: a multicast, then training side by side and uploads one by one."""
    end = 0.0
    for unit in chosen:
        end = max(end, times.compute[unit]) + times.upload[unit]
    return max((times.download[unit] for unit in chosen), default=0.0) + end


@pytest.mark.parametrize("seed", range(20))
def test_a_schedule_never_exceeds_its_deadline(seed):
    times = random_times(seed)
    for deadline in (0.5, 2.0, 5.0, 20.0):
        found = greedy_schedule(times, deadline=deadline)
        assert len(set(found.chosen.tolist())) == found.chosen.size
        np.testing.assert_allclose(found.seconds, length_of(times, found.chosen), rtol=1e-12)
        assert found.seconds < deadline


def test_more_time_never_means_fewer_agents_if_uploads_are_equal():
    for seed in range(20):
        times = random_times(seed, equal_uploads=True)
        times = times._replace(download=np.full(8, 0.1))
        counts = [greedy_schedule(times, deadline=d).chosen.size for d in np.linspace(0.1, 30, 40)]
        assert (np.diff(counts) >= 0).all()
        assert counts[-1] == 8


def test_nobody_in_time_leaves_the_model_and_a_hopeless_deadline_is_an_error():
    times = random_times(0)
    assert greedy_schedule(times, deadline=0.01).chosen.size == 0
    # One agent is asked; the deadline is between the fastest and the slowest of all.
    method = FedCS(step_size=0.02, num_active=1, deadline=0.3)
    agents, start = agents_of(method), np.array([0.3, -0.2, 0.5])
    state = method.start(agents, start)
    someone = set()
    for i in range(20):
        asked = draw_uniformly(agents, 1, i)
        schedule = method.federated.sampler.schedule(agents.facts(), agents, asked)
        params = method.round(state, agents, i).params
        assert asked.size == 1
        assert np.array_equal(params, start) == (schedule.chosen.size == 0)
        someone.add(bool(schedule.chosen.size))
    assert someone == {True, False}
    with pytest.raises(ValueError, match="no agent meets it"):
        simulate(regression(), FedCS(deadline=1e-3, **SOME), rounds=1)


def test_fedcs_leaves_out_slow_agents_and_counts_its_schedule():
    problem = regression()
    clock = Clock(rate=(1.0, 100.0))
    strict, easy = (
        simulate(problem, FedCS(deadline=d, **SOME), rounds=30, clock=clock).ledger()
        for d in (1.0, 50.0)
    )
    assert strict.models_up < easy.models_up == 90
    assert strict.seconds < 30 * 1.0
    assert strict.seconds < easy.seconds
    assert strict.scalars_up == 3 * 90 + 3 * 4  # and N_k, E_k, B_k at the start


def test_hybrid_fl_gathers_towards_equal_classes():
    problem = regression(sizes=(20, 30, 25, 15))
    method = HybridFL(permit=1.0, fetch=7, num_classes=3, **SOME)
    agents = agents_of(method, problem)
    state = method.start(agents, np.zeros(3))
    gathered = 0
    for round_index in range(4):
        state = method.round(state, agents, round_index)
        counts = np.bincount(state.classes[state.gathered], minlength=3)
        assert counts.max() - counts.min() <= 1  # a balanced choice was always available
        assert counts.sum() == gathered + 7
        gathered = counts.sum()


def fetched_by_the_letter(method, state, agents, asked, seconds):
    """Example by example: the rarest class first, whoever would be late is passed over."""
    data = agents.problem.data
    size = 8 * (data.num_features + 1)
    rows = [r for k in asked for r in range(data.offsets[k], data.offsets[k + 1])]
    owner = np.searchsorted(data.offsets, np.arange(len(data.targets)), side="right") - 1
    held, counts = state.gathered.copy(), state.counts.copy()
    waiting = [r for r in rows if state.left[owner[r]] > 0 and not held[r]]
    sent = 0
    while waiting and sent < method.fetch:
        row = min(waiting, key=lambda r: counts[state.classes[r]])
        waiting.remove(row)
        longer = size / agents.speeds.upload[owner[row]]
        if seconds + longer < method.deadline:
            seconds += longer
            held[row] = True
            counts[state.classes[row]] += 1
            sent += 1
    return held, counts, seconds


@pytest.mark.parametrize("deadline", [0.6, 0.6005, 0.602, 0.61, 9.0])
def test_what_hybrid_fl_fetches_by_the_letter(deadline):
    problem = regression(sizes=(20, 30, 25, 15))
    method = HybridFL(permit=0.75, fetch=11, num_classes=4, deadline=deadline, **SOME)
    agents = agents_of(method, problem)
    state = method.start(agents, np.zeros(3))
    for asked in ([0, 1, 2, 3], [2, 0], [3], [1, 3, 0]):
        held, counts, seconds = fetched_by_the_letter(method, state, agents, asked, 0.5993)
        state, found = method.fetched(state, agents, np.array(asked), 0.5993)
        np.testing.assert_array_equal(state.gathered, held)
        np.testing.assert_array_equal(state.held, np.flatnonzero(held))
        np.testing.assert_array_equal(state.counts, counts)
        assert found == seconds
        owned = np.add.reduceat(held, problem.data.offsets[:-1])
        permits = state.left + owned
        np.testing.assert_array_equal(
            permits[permits > 0], np.array(problem.data.num_examples)[permits > 0]
        )


def test_hybrid_fl_with_all_data_at_the_cloud_is_central_descent():
    """All permit, unlimited time and fetches, and no agent's own model counts."""
    problem = regression()
    method = HybridFL(
        permit=1.0, fetch=1000, full_batch=True, server_steps=2, step_size=0.02, num_active=4
    )
    agents = agents_of(method, problem)
    state = method.start(agents, np.zeros(3))
    state = method.round(state, agents, 0)
    assert state.gathered.all()
    x, y = problem.data.features, problem.data.targets
    model = np.zeros(3)
    for _ in range(2):
        model = model - 0.02 * problem.loss.gradient(model, x, y, np.ones(len(y)))[0]
    change = method._server(method.start(agents, np.zeros(3)), agents, np.arange(4), state.held, 0)
    np.testing.assert_allclose(change, model, rtol=1e-12)


def test_folb_weighs_by_agreement():
    """Gradients e1, e1, e2 and -e1 at w: sums of I_k, zero and negative weights."""
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    mean = vectors.mean(axis=0)
    influence = vectors @ mean
    np.testing.assert_allclose(influence.sum(), 4 * mean @ mean, rtol=1e-12)
    # x = sqrt(2) I and targets t: the gradient at 0 is -(2/2) sqrt(2) t for two rows
    agents = [(np.sqrt(2.0) * np.eye(2), -v / np.sqrt(2.0)) for v in vectors]
    problem = Problem(FederatedData.from_agents(agents), LeastSquares(), batch_size=2)
    method = FOLB(step_size=0.1, num_active=4, prox=0.0, full_batch=True)
    found = simulate(problem, method, rounds=1, engine="agents").params[0]
    weights = influence / np.abs(influence).sum()
    np.testing.assert_allclose(found, weights @ (-0.1 * vectors), rtol=1e-12)


@pytest.mark.parametrize("how", ["uniform", "size"])
@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize(("variant", "penalty"), [
    ("one-set", 0.0), ("one-set", 0.3), ("two-sets", 0.0), ("two-sets", 0.3), ("near-optimal", 0.0)
])  # fmt: skip
def test_folb_by_the_letter(variant, penalty, absolute, how):
    """One full-batch step: all vectors from the agents' normal equations."""
    problem, start, prox = regression(), np.array([0.3, -0.2, 0.5]), 0.7
    method = FOLB(
        variant=variant, penalty=penalty, absolute=absolute, prox=prox, client_weights=how,
        local_steps=2, full_batch=True, step_size=0.05, num_active=3,
    )  # fmt: skip
    agents, pieces = agents_of(method, problem), quadratics(problem)
    sizes = problem.data.num_examples if how == "size" else np.ones(4)

    def gradient(k, x):
        return pieces[k][0] @ x - pieces[k][1]

    def influences(which):
        share = {k: sizes[k] / sum(sizes[j] for j in which) for k in which}
        mean = sum(share[k] * gradient(k, start) for k in which)
        return share, mean, {k: share[k] * gradient(k, start) @ mean for k in which}

    ends = []
    for k in range(4):
        x = start
        for _ in range(2):
            x = x - 0.05 * (gradient(k, x) + prox * (x - start))
        ends.append(x)
    for i in range(4):
        if variant == "near-optimal":
            found = influences(range(4))[2]
            points = agents.stream(Purpose.AGENTS, i).uniforms(3)
            edges = np.cumsum([abs(found[k]) for k in range(4)])
            drawn = np.searchsorted(edges, points * edges[-1], side="right")
            weights = [sum(np.sign(found[k]) for d in drawn if d == k) / 3 for k in range(4)]
        else:
            active = draw_uniformly(agents, 3, i)
            share, mean, found = influences(active)
            for k in active:
                error = np.linalg.norm(gradient(k, ends[k]) + prox * (ends[k] - start))
                gamma = error / np.linalg.norm(gradient(k, start))
                found[k] -= share[k] * penalty * gamma * mean @ mean
            norm = found
            if variant == "two-sets":
                norm = influences(draw_uniformly(agents, 3, i, purpose=Purpose.DOMAINS))[2]
            total = abs(sum(norm.values()))
            total = sum(abs(v) for v in norm.values()) if absolute else total
            weights = [found.get(k, 0.0) / total for k in range(4)]
        expected = sum(w * (x - start) for w, x in zip(weights, ends, strict=True))
        moved = method.round(method.start(agents, start), agents, i).params - start
        np.testing.assert_allclose(moved, expected, rtol=1e-10)


def test_the_variants_of_folb_need_what_they_say():
    problem = regression()
    ups = {
        variant: simulate(
            problem, FOLB(variant=variant, step_size=0.01, num_active=2), rounds=10, engine="agents"
        ).ledger()
        for variant in ("one-set", "two-sets", "near-optimal")
    }
    assert ups["one-set"].models_up == 10 * 4  # changes and gradients of two agents
    assert ups["two-sets"].models_up == 10 * 6
    assert ups["near-optimal"].models_up > 10 * 4  # gradients of all


def test_the_inexactness_of_an_exact_solve_is_zero():
    problem = regression()
    method = FOLB(
        step_size=0.05, num_active=4, prox=1.0, penalty=1.0, local_steps=600, full_batch=True
    )
    agents, start = agents_of(method, problem), np.array([1.0, 0.0, -1.0])
    _, info = method.federated.step(method.start(agents, start), agents, 0)
    np.testing.assert_allclose(info.updates.score, 0.0, atol=1e-9)


def test_the_projection_is_the_nearest_point_of_the_simplex():
    rng = np.random.default_rng(0)
    grid = [np.array(p) / 20.0 for p in itertools.product(range(21), repeat=3) if sum(p) == 20]
    for _ in range(30):
        point = rng.normal(0.3, 0.7, 3)
        found = onto_simplex(point)
        assert found.min() >= 0.0
        np.testing.assert_allclose(found.sum(), 1.0, rtol=1e-12)
        best = min(np.linalg.norm(point - other) for other in grid)
        assert np.linalg.norm(point - found) <= best + 1e-12


def two_parabolas(a, b):
    data = FederatedData.from_agents([(np.ones((1, 1)), [a]), (np.ones((1, 1)), [b])])
    return Problem(data, LeastSquares())


def test_agnostic_learning_on_two_parabolas_ends_in_the_middle():
    method = AgnosticFL(step_size=0.02, mixture_step=0.02)
    problem = two_parabolas(1.0, 4.0)
    agents = agents_of(method, problem)
    state = method.start(agents, np.zeros(1))._replace(mixture=np.array([0.8, 0.2]))
    for round_index in range(4000):
        state = method.round(state, agents, round_index)
        assert abs(state.mixture.sum() - 1.0) < 1e-12
    np.testing.assert_allclose(state.mixture, 0.5, atol=1e-3)
    np.testing.assert_allclose(method.model(state), 2.5, atol=0.02)


def test_equal_risks_leave_the_mixture():
    method = AgnosticFL(step_size=0.02, mixture_step=0.5)
    problem = two_parabolas(1.0, 3.0)
    agents = agents_of(method, problem)
    state = method.round(method.start(agents, np.array([2.0])), agents, 0)
    np.testing.assert_allclose(state.mixture, 0.5, rtol=1e-12)


def test_a_fair_step_shrinks_with_the_gradient():
    """Equal gradients and risks: the mean gradient times eta / (1 + q eta |g|^2 / F)."""
    direction, risk, q, eta = np.array([3.0, -1.0]), 2.0, 3.0, 0.1
    found = fair_step(np.full(4, risk), np.tile(direction, (4, 1)), power=q, step_size=eta)
    square = direction @ direction
    np.testing.assert_allclose(found, eta * direction / (1 + q * eta * square / risk), rtol=1e-8)
    plain = fair_step(np.arange(4.0), np.tile(direction, (4, 1)), power=0.0, step_size=eta)
    np.testing.assert_allclose(plain, eta * direction, rtol=1e-12)


def test_a_fairer_model_has_more_equal_risks():
    problem = two_parabolas(0.0, 1.0)
    data = FederatedData.from_agents(
        [(np.ones((1, 1)), [0.0]), (np.ones((1, 1)), [0.2]), (np.ones((1, 1)), [3.0])]
    )
    problem = Problem(data, LeastSquares())
    spread = []
    for power in (0.0, 2.0, 8.0):
        method = QFedAvg(power=power, step_size=0.1, num_active=3)
        model = simulate(problem, method, rounds=3000).params[0, 0]
        spread.append(np.std([(model - t) ** 2 for t in (0.0, 0.2, 3.0)]))
    assert spread[0] > spread[1] > spread[2]


def test_bad_input():
    with pytest.raises(ValueError, match="power=-1"):
        QFedAvg(power=-1, **SOME)
    with pytest.raises(ValueError, match="never negative"):
        fair_step(np.array([-0.5, 1.0]), np.ones((2, 2)), power=1.0, step_size=0.1)
    with pytest.raises(ValueError, match="deadline=-1"):
        FedCS(deadline=-1, **SOME)
    with pytest.raises(ValueError, match="permit=2"):
        HybridFL(permit=2, **SOME)
    with pytest.raises(ValueError, match="mixture_step=-1"):
        AgnosticFL(step_size=0.1, mixture_step=-1)
    with pytest.raises(ValueError, match="variant='three'"):
        FOLB(variant="three", **SOME)  # type: ignore[arg-type]
