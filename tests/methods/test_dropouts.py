"""Agents that do not answer: every method goes on without them, and nobody is charged for them."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_federations import identical_agents, quadratics, regression

from isfed import (
    FOLB,
    SCAFFOLD,
    AdaptiveTau,
    AgnosticFL,
    Clock,
    ClusteredSampling,
    CooperativeSGD,
    DecentralisedSGD,
    DynamicFedAvg,
    ElasticAveraging,
    FedAsync,
    FedAvg,
    FedAvgScheme,
    FedCS,
    FedProx,
    FedVARP,
    HierFAVG,
    HybridFL,
    ISFedAvg,
    LocalGD,
    LocalSGD,
    Memory,
    Mocha,
    MomentumSGD,
    PeriodicAveraging,
    PowerOfChoice,
    QFedAvg,
    QFedSGD,
    RestartedSGD,
    StichSGD,
    simulate,
)
from isfed.federation.object_agents import ObjectAgents
from isfed.methods import clustered_sampling
from isfed.methods.cooperative_sgd import Ring, links_of, mixed
from isfed.methods.fedvarp import ChangeMemory
from isfed.methods.uniform_samplers import draw_uniformly

STEP: dict[str, Any] = {"step_size": 0.05}
SOME: dict[str, Any] = {**STEP, "num_active": 3}
FULL: dict[str, Any] = {"full_batch": True}
EVERYBODY = [
    LocalGD(steps=2, **STEP),
    LocalSGD(steps=2, **STEP, **FULL),
    StichSGD(strong=1.0, shift=80.0, steps=2, full_batch=True),
    PeriodicAveraging(steps=2, **STEP, **FULL),
    DecentralisedSGD(**STEP, **FULL),
    ElasticAveraging(**STEP, **FULL),
    RestartedSGD(steps=2, **STEP, **FULL),
    RestartedSGD(steps=2, average="pre", **STEP, **FULL),
    AdaptiveTau(budget=1e9, **STEP, **FULL),
    MomentumSGD(momentum=0.5, **STEP, **FULL),
    HierFAVG(edges=2, edge_rounds=2, **STEP, **FULL),
    AgnosticFL(**STEP),
]
SAMPLED = [
    FedAvg(**SOME),
    DynamicFedAvg(**SOME),
    ISFedAvg(**SOME),
    ISFedAvg(correction="difference", **SOME),
    *(FedAvgScheme(scheme=s, **SOME, **FULL) for s in ("I", "II", "transformed-II", "original")),
    FedProx(**SOME, **FULL),
    FedProx(sampling="weighted", **SOME, **FULL),
    FedCS(deadline=5.0, **SOME, **FULL),
    HybridFL(deadline=5.0, permit=0.5, **SOME, **FULL),
    *(FOLB(variant=v, **SOME, **FULL) for v in ("one-set", "two-sets", "near-optimal")),
    FOLB(penalty=0.1, **SOME, **FULL),
    QFedAvg(**SOME, **FULL),
    QFedSGD(**SOME),
    FedAsync(**STEP, **FULL),
    FedAsync(in_flight=2, **STEP, **FULL),
    AgnosticFL(stochastic=True, **STEP),
    AgnosticFL(stochastic=True, gradient="per-domain", **STEP),
    Mocha(penalty=0.1),
    *(ClusteredSampling(by=by, **SOME, **FULL) for by in ("size", "similarity")),
    FedVARP(**SOME, **FULL),
    SCAFFOLD(**SOME, **FULL),
    PowerOfChoice(candidates=4, **SOME, **FULL),
]


def name_of(method):
    return f"{method.name} {getattr(method, 'variant', '') or getattr(method, 'sampling', '')}"


@pytest.mark.parametrize("method", [*EVERYBODY, *SAMPLED], ids=name_of)
def test_half_of_the_agents_answer_and_half_of_the_models_come_back(method):
    problem, rounds = identical_agents(count=6), 240
    half, all_of_them = (
        simulate(problem, method, rounds=rounds, clock=Clock(drop=drop)) for drop in (0.5, 0.0)
    )
    assert np.isfinite(half.params).all()
    one, other = half.ledger(), all_of_them.ledger()
    assert one.models_up < 0.75 * other.models_up
    assert one.gradients < 0.75 * other.gradients
    assert one.rounds == other.rounds == rounds


@pytest.mark.parametrize("method", EVERYBODY, ids=name_of)
def test_the_others_still_find_the_optimum_if_all_agree(method):
    """Full batches, equal agents: w^o is where every step leads, whoever takes it."""
    problem = identical_agents()
    if isinstance(method, StichSGD):
        return  # its output is a mean over the whole run
    rounds = 3000 if isinstance(method, AgnosticFL) else 900
    found = simulate(problem, method, rounds=rounds, clock=Clock(drop=0.3)).params[0]
    np.testing.assert_allclose(found, problem.optimum, atol=3e-2 if rounds == 3000 else 1e-6)


def test_the_mean_is_over_those_that_answer_by_the_letter():
    problem, parts = regression(), quadratics(regression())
    method, clock = LocalGD(step_size=0.05, steps=2, client_weights="size"), Clock(drop=0.4)
    agents = ObjectAgents(problem, method.rules(4), seed=5, repetition=0)
    agents.use_clock(clock)
    state, model = method.start(agents, np.zeros(3)), np.zeros(3)
    for round_index in range(12):
        state = method.round(state, agents, round_index)
        here = agents.answers(np.arange(4), round_index)
        sizes = np.where(here, problem.data.num_examples, 0)
        ends = []
        for h, b in parts:
            x = model.copy()
            for _ in range(2):
                x = x - 0.05 * (h @ x - b)
            ends.append(x)
        if here.any():
            model = sizes @ np.array(ends) / sizes.sum()
        np.testing.assert_allclose(state.params, model, rtol=1e-12)


@pytest.mark.parametrize("how", ["uniform", "size"])
@pytest.mark.parametrize("drop", [0.0, 0.4])
def test_a_mean_before_the_last_step_by_the_letter(how, drop):
    """The models lie apart after a round; what is shown is their mean by c_k, as in every mean."""
    problem, parts = regression(), quadratics(regression())
    method = RestartedSGD(steps=3, average="pre", client_weights=how, **STEP, **FULL)
    agents = ObjectAgents(problem, method.rules(4), seed=5, repetition=0)
    agents.use_clock(Clock(drop=drop))
    counts = problem.data.num_examples if how == "size" else np.ones(4)
    state, models = method.start(agents, np.zeros(3)), np.zeros((4, 3))
    for round_index in range(12):
        state = method.round(state, agents, round_index)
        here = agents.answers(np.arange(4), round_index) if drop else np.ones(4, bool)
        if here.any():
            ends, last = models.copy(), np.zeros((4, 3))
            for k in np.flatnonzero(here):
                h, b = parts[k]
                for _ in range(2):
                    ends[k] = ends[k] - 0.05 * (h @ ends[k] - b)
                last[k] = -0.05 * (h @ ends[k] - b)
            mean = sum(counts[k] * ends[k] for k in range(4) if here[k]) / counts[here].sum()
            models = mean + last
        shown = sum(counts[k] * models[k] for k in range(4)) / counts.sum()
        np.testing.assert_allclose(method.model(state), shown, rtol=1e-12, atol=1e-15)


def test_an_absence_counts_as_no_change_where_the_mean_must_stay_unbiased(monkeypatch):
    """ISFedAvg: over all answers of two agents drawn, half of the update is left on average."""
    problem = regression(local_steps=1)
    method = ISFedAvg(step_size=0.05, num_active=4, agents=Memory(), examples=Memory())
    whole = simulate(problem, method, rounds=1, engine="agents").params[0]
    rng_rounds = 400
    moved = np.zeros(3)
    for seed in range(rng_rounds):
        agents = ObjectAgents(problem, method.rules(4), seed=0, repetition=0)
        agents.use_clock(Clock(drop=0.5))
        answers = np.random.default_rng(seed).random(4) < 0.5
        monkeypatch.setattr(agents, "answers", lambda which, _, found=answers: found[which])
        state = method.start(agents, np.zeros(3))
        moved += method.round(state, agents, 0).params / rng_rounds
    # the standard error of a mean of 400 fair coins for each of four agents
    np.testing.assert_allclose(moved, 0.5 * whole, atol=4 * np.abs(whole).max() / np.sqrt(400))


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_what_the_page_says_of_those_that_are_missing(how, monkeypatch):
    """Every answer of three (or four) agents: FedAvg, Dynamic FedAvg, HierFAVG and FedVARP."""
    problem = regression(local_steps=1, batch_size=(4, 9, 3, 6))
    sizes, start = problem.data.num_examples, np.full(3, 0.25)
    counts = sizes if how == "size" else np.ones(4)
    steps = np.array([-0.05 * (h @ start - b) for h, b in quadratics(problem)])
    methods = {
        "dynamic": DynamicFedAvg(client_weights=how, **SOME),
        "edges": HierFAVG(edges=[[0, 2], [1, 3]], client_weights=how, **STEP, **FULL),
        "varp": FedVARP(client_weights=how, **SOME, **FULL),
    }
    if how == "size":  # with uniform weights it has no full batch
        methods["fedavg"] = replace(FedAvg(client_weights=how, **SOME), full_batch=True)
    memory = np.random.default_rng(0).standard_normal((4, 3))
    for name, here in itertools.product(methods, itertools.product((True, False), repeat=4)):
        method = methods[name]
        agents = ObjectAgents(problem, method.rules(4), seed=5, repetition=0)
        agents.use_clock(Clock(drop=0.5))
        monkeypatch.setattr(agents, "answers", lambda w, _, h=here: np.array(h)[w])
        state = method.start(agents, start)
        drawn = range(4) if name == "edges" else draw_uniformly(agents, 3, 0)
        heard = [k for k in drawn if here[k]]
        if name in ("dynamic", "fedavg"):
            whole = 3 if how == "uniform" else max(1, sum(counts[k] for k in heard))
            expected = sum((counts[k] * steps[k] for k in heard), np.zeros(3)) / whole
        elif name == "edges":
            expected = np.zeros(3)
            for edge in ([0, 2], [1, 3]):
                there = [k for k in edge if here[k]]
                if there:  # else the edge brings no change, with all of its weight
                    mean = sum(counts[k] * steps[k] for k in there) / sum(counts[k] for k in there)
                    expected = expected + sum(counts[k] for k in edge) / counts.sum() * mean
        else:
            state = state._replace(estimator=ChangeMemory(memory.copy()))
            shares = counts / counts.sum()
            expected = shares @ memory  # also if nobody answers
            for k in heard:
                expected = expected + 4 / len(heard) * shares[k] * (steps[k] - memory[k])
        moved = method.round(state, agents, 0).params - start
        np.testing.assert_allclose(moved, expected, rtol=1e-11, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_clustered_sampling_keeps_its_direction(how, monkeypatch):
    """Over all draws and all answers, of which a share comes back: that share of the update."""
    problem, answered = regression(local_steps=1), 0.7
    method = ClusteredSampling(
        by="size", step_size=0.05, num_active=2, client_weights=how, full_batch=True
    )
    agents = ObjectAgents(problem, method.rules(4), seed=5, repetition=0)
    agents.use_clock(Clock(drop=1.0 - answered))
    sizes = problem.data.num_examples
    weights = sizes / sizes.sum() if how == "size" else np.full(4, 0.25)
    groups = clustered_sampling.groups_by_size(weights, 2)
    mean = np.zeros(3)
    for drawn in itertools.product(range(4), repeat=2):
        chance = groups[0, drawn[0]] * groups[1, drawn[1]]
        found = np.unique(drawn, return_counts=True)
        monkeypatch.setattr(clustered_sampling, "draw_one_of_each", lambda *_, f=found: f)
        for here in itertools.product((True, False), repeat=4):
            share = np.where(here, answered, 1.0 - answered).prod()
            monkeypatch.setattr(agents, "answers", lambda w, _, h=here: np.array(h)[w])
            state = method.round(method.start(agents, np.zeros(3)), agents, 0)
            mean += chance * share * state.params
    full = -0.05 * sum(c * -b for c, (_, b) in zip(weights, quadratics(problem), strict=True))
    np.testing.assert_allclose(mean, answered * full, rtol=1e-12)


def test_whoever_is_absent_talks_to_nobody():
    absent = np.array([False, True, False, False, False])
    links = links_of(Ring()(5))
    matrix = mixed(*links, np.eye(5), absent)
    np.testing.assert_allclose(matrix, matrix.T)
    np.testing.assert_allclose(matrix.sum(axis=0), 1.0)
    np.testing.assert_array_equal(matrix[1], [0, 1, 0, 0, 0])
    np.testing.assert_allclose(mixed(*links, np.eye(5), np.zeros(5, bool)), Ring()(5))
    problem = regression()
    one, other = (
        simulate(problem, m, rounds=20, engine="agents", clock=Clock(drop=0.3)).params
        for m in (PeriodicAveraging(steps=3, **STEP, **FULL), LocalSGD(steps=3, **STEP, **FULL))
    )
    np.testing.assert_allclose(one, other, rtol=1e-12)


def test_nobody_at_all_leaves_the_model(monkeypatch):
    problem = regression()
    for method in (*EVERYBODY, *SAMPLED):
        agents = ObjectAgents(problem, method.rules(4), seed=5, repetition=0)
        agents.use_clock(Clock(drop=0.5))
        monkeypatch.setattr(agents, "answers", lambda which, _: np.zeros(which.size, bool))
        state = method.start(agents, np.full(3, 0.25))
        before = method.model(state)
        after = method.model(method.round(state, agents, 0))
        np.testing.assert_allclose(after, before, atol=1e-15, err_msg=name_of(method))


def test_a_mixing_of_ones_own_with_absences_keeps_the_sum():
    problem = identical_agents()
    method = CooperativeSGD(mixing=Ring(), **STEP, **FULL)
    found = simulate(problem, method, rounds=900, clock=Clock(drop=0.5)).params[0]
    np.testing.assert_allclose(found, problem.optimum, atol=1e-6)
