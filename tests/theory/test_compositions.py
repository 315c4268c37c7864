"""The variance of any composition, against all cohorts and all batches listed one by one."""

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from isfed import (
    ClusteredSampling,
    Deville,
    FedAvg,
    FederatedData,
    HartleyRao,
    ISFedAvg,
    LeastSquares,
    Memory,
    Poisson,
    Problem,
    Systematic,
    Uniform,
    WithReplacement,
)
from isfed.federation.messages import EVERY, Cohort, Facts, Updates, Work
from isfed.federation.safety import Privacy
from isfed.methods.by_score import ByScore
from isfed.methods.clustered_sampling import groups_by_size
from isfed.methods.estimators import (
    HorvitzThompson,
    InverseResponse,
    Mean,
    MeanOfAll,
    PlainMean,
)
from isfed.methods.fedasync import FedAsync
from isfed.methods.fedavg_schemes import FedAvgScheme
from isfed.methods.federated import Federated, Opened
from isfed.methods.local_steps import LocalSteps
from isfed.methods.power_of_choice import PowerOfChoice
from isfed.methods.private import Private
from isfed.methods.scaffold import SCAFFOLD
from isfed.methods.servers import FedAdam
from isfed.methods.uniform_samplers import AllAgents, ByWeight, UniformCohort
from isfed.sampling.designs.outcomes import outcomes
from isfed.theory import compare_ways
from isfed.theory.probabilities import inclusion_of

K, L, SIZES = 4, 2, (2, 3, 4, 3)


def small_problem(steps: Any = 1, batch=1) -> Problem:
    rng = np.random.default_rng(5)
    agents = []
    for k, size in enumerate(SIZES):
        x = rng.normal(size=(size, 2))
        agents.append((x, x @ np.array([k - 1.0, 2.0]) + rng.normal(size=size)))
    data = FederatedData.from_agents(agents)
    return Problem(data, LeastSquares(0.1), local_steps=steps, batch_size=batch)


MODEL = np.array([0.3, -0.7])
STEPS = LocalSteps(1.0, divide_by_steps=True, example_design=HartleyRao())
REPEATED = LocalSteps(1.0, divide_by_steps=True)  # examples with replacement
FULL = LocalSteps(1.0, divide_by_steps=True, full_batch=True)


def cohorts(method: Federated, problem: Problem, facts: Facts):
    """Every cohort with its probability."""
    sampler = method.sampler
    if isinstance(sampler, AllAgents):
        sets = [(tuple(range(K)), 1.0)]
        inclusion = np.ones(K)
    elif isinstance(sampler, UniformCohort):
        every = list(combinations(range(K), L))
        sets = [(units, 1.0 / len(every)) for units in every]
        inclusion = np.full(K, L / K)
    elif isinstance(sampler, ByScore):
        scores = np.full(K, 1.0)
        if not sampler.policy.equal:
            scores = literal_scores(problem, method) / np.sqrt(sampler.costs or 1.0)
            scores = facts.weighed(scores)
        inclusion = inclusion_of(scores, L, sampler.policy, sampler.design)
        sets = outcomes(sampler.design, inclusion)
    else:
        rows = np.tile(facts.share(), (L, 1))
        if not isinstance(sampler, ByWeight):
            rows = groups_by_size(facts.share(), L)
        sets = [
            (units, float(np.prod([rows[i, k] for i, k in enumerate(units)])))
            for units in product(range(K), repeat=L)
        ]
        inclusion = L * facts.share()
    for units, chance in sets:
        who, times = np.unique(np.array(units, np.int64), return_counts=True)
        num = K if isinstance(sampler, AllAgents) else L
        yield Cohort(who, num, times.astype(float), inclusion[who] / num), chance


def rows_of(problem, agent):
    x, y = problem.data.agent(agent)
    return -2.0 * (y - x @ MODEL)[:, None] * x + 0.2 * MODEL


def literal_scores(problem, method):
    """Eq. (48) of a turn with one step of one example, or of all, each with the same chance."""
    scores = []
    for k in range(K):
        rows = rows_of(problem, k)
        batch = len(rows) if method.local.full_batch else 1
        spread, square = (rows**2).sum() / len(rows), (rows.mean(axis=0) ** 2).sum()
        scores.append(np.sqrt(6.0 / batch * spread + (3.0 + 6.0 / batch) * square))
    return np.array(scores)


def turns_listed(problem, method, agent):
    """Every change of one step of size 1, with its probability."""
    rows = rows_of(problem, agent)
    if method.local.full_batch:
        return [(-rows.mean(axis=0), 1.0)]
    return [(-row, 1.0 / len(rows)) for row in rows]  # one example, with or without replacement


def literal_variance(problem, method):
    """The variance over all cohorts and batches, by the estimator's own `combine`; the mean."""
    sizes = problem.data.num_examples
    weight = None if method.client_weights == "uniform" else sizes / sizes.mean()
    facts = Facts(K, 2, 2, weight, sizes, problem.local_steps, problem.batch_size)
    first, second, total = np.zeros(2), 0.0, 0.0
    state = method.estimator.init(facts, MODEL)
    for cohort, chance in cohorts(method, problem, facts):
        work = method.estimator.ask(state, cohort, facts, Work(1.0, True))
        scale = work.step(cohort.agents, facts)
        opened = Opened(cohort, MODEL, work, None)
        each = [turns_listed(problem, method, k) for k in cohort.agents]
        for turns in product(*each):
            change = np.array([s * c for s, (c, _) in zip(scale, turns, strict=True)])
            change = change.reshape(-1, 2)
            none = np.zeros(len(change))
            updates = Updates(EVERY, change, none, np.zeros((len(change), 4)), np.zeros((0, 0)))
            step = method.estimator.combine(state, opened, updates, facts)[0]
            p = chance * float(np.prod([q for _, q in turns]))
            first, second, total = first + p * step, second + p * step @ step, total + p
    assert total == pytest.approx(1.0)
    return second - first @ first, -first


def gradient(problem, weights):
    means = np.array([rows_of(problem, k).mean(axis=0) for k in range(K)])
    c = np.full(K, 1 / K) if weights == "uniform" else np.array(SIZES) / sum(SIZES)
    return c @ means


def scored(design, **options):
    return ByScore(L, Memory(floor=0.2), design, **options)


COMPOSITIONS = {
    "uniform, Horvitz-Thompson": (UniformCohort(L), STEPS, HorvitzThompson()),
    "uniform, in the step": (UniformCohort(L), STEPS, HorvitzThompson("step")),
    "uniform, mean": (UniformCohort(L), STEPS, Mean()),
    "everybody": (AllAgents(), STEPS, MeanOfAll()),
    "by weight": (ByWeight(L), STEPS, PlainMean()),
    "by score, Deville": (scored(Deville()), STEPS, HorvitzThompson()),
    "by score, systematic": (scored(Systematic()), STEPS, HorvitzThompson("step")),
    "by score, Poisson": (scored(Poisson()), STEPS, HorvitzThompson()),
    "by score, repeated": (scored(WithReplacement()), STEPS, HorvitzThompson()),
    "by score, with costs": (
        scored(Deville(), costs=(1.0, 4.0, 2.0, 3.0)), STEPS, HorvitzThompson()
    ),
    "by score, full batches": (scored(Deville()), FULL, HorvitzThompson()),
    "equal scores": (ByScore(L, Uniform(), Deville()), REPEATED, HorvitzThompson()),
    "adjusted for absences": (scored(Deville()), STEPS, InverseResponse(HorvitzThompson())),
}  # fmt: skip


def compared(problem, method):
    found = compare_ways(problem, num_active=L, step_size=0.01, params=MODEL, methods=[method])
    (way,) = found.methods.values()
    return way, found


@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_the_variance_is_that_of_all_outcomes(name, weights):
    problem = small_problem()
    method = Federated(*COMPOSITIONS[name], client_weights=weights)
    way, found = compared(problem, method)
    if (name, weights) == ("uniform, mean", "size"):
        assert np.isnan(way.variance)
        assert "Mean of agents drawn by UniformCohort is not an unbiased estimate" in way.unknown
        return
    variance, mean = literal_variance(problem, method)
    np.testing.assert_allclose(mean, gradient(problem, weights), rtol=1e-9)
    assert way.variance == pytest.approx(variance, rel=1e-6)
    assert not way.unknown
    assert way.drift == 0.0
    assert way.excess == pytest.approx(0.25 * 0.01 * variance, rel=1e-6)
    base = Federated(UniformCohort(L), STEPS, HorvitzThompson(), client_weights=weights)
    assert way.times_smaller == pytest.approx(literal_variance(problem, base)[0] / variance, 1e-6)
    if weights == "uniform":
        assert found.ways["uniform"].variance == pytest.approx(literal_variance(problem, base)[0])


@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize(
    "method",
    [
        ClusteredSampling(step_size=1.0, num_active=L, by="size", divide_by_steps=True),
        FedAvgScheme(step_size=1.0, num_active=L, scheme="I"),
        FedAvgScheme(step_size=1.0, num_active=L, scheme="transformed-II"),
    ],
    ids=["clustered", "scheme I", "transformed-II"],
)
def test_published_methods_are_known_by_their_parts(method, weights):
    from dataclasses import replace

    method = replace(method, client_weights=weights)
    problem = small_problem()
    way, _ = compared(problem, method)
    variance, mean = literal_variance(problem, method.federated)
    np.testing.assert_allclose(mean, gradient(problem, weights), rtol=1e-9)
    assert way.variance == pytest.approx(variance, rel=1e-6)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (FedAsync(step_size=0.1), "a round of its own"),
        (PowerOfChoice(step_size=0.1, num_active=L, candidates=3), "not an unbiased estimate"),
        (SCAFFOLD(step_size=0.1, num_active=L), "SteeredMean of agents drawn by UniformCohort"),
        (FedAvgScheme(step_size=0.1, num_active=L, scheme="II"), "SchemeTwo"),
        (
            Federated(UniformCohort(L), STEPS, Private(HorvitzThompson(), Privacy(clip=1.0))),
            "Private",
        ),
        (
            Federated(
                ByScore(L, Memory(), Deville(), most_inclusion=0.8), STEPS, HorvitzThompson()
            ),
            "most_inclusion",
        ),
    ],
)  # fmt: skip
def test_what_is_not_known_is_said(method, reason):
    way, found = compared(small_problem(), method)
    assert np.isnan([way.variance, way.times_smaller, way.excess]).all()
    assert reason in way.unknown
    (row,) = found.as_dict()["methods"]
    assert row["variance"] is None
    assert reason in row["unknown"]


def test_steps_that_differ_must_be_divided():
    problem = small_problem(steps=np.array([1, 2, 3, 1]))
    way, _ = compared(problem, FedAvg(step_size=0.1, num_active=L))
    assert "not divided by E_k" in way.unknown
    way, _ = compared(small_problem(steps=3), FedAvg(step_size=0.1, num_active=L))
    assert way.variance > 0.0


def test_servers_and_other_local_steps_have_a_variance_but_no_predicted_error():
    parts = scored(Deville()), STEPS, HorvitzThompson()
    way, _ = compared(small_problem(), Federated(*parts, FedAdam()))
    assert way.variance > 0.0
    assert np.isnan(way.excess)
    assert "FedAdam" in way.unknown
    pulled = LocalSteps(0.1, local_steps=3, divide_by_steps=True, prox=1.0)
    way, _ = compared(small_problem(), Federated(UniformCohort(L), pulled, Mean()))
    assert way.variance > 0.0
    assert np.isnan(way.drift)


@pytest.mark.parametrize("correction", ["difference", "drift"])
def test_control_variates_are_the_ways_of_these_names(correction):
    problem = small_problem(steps=2)
    method = ISFedAvg(
        step_size=0.01, num_active=L, correction=correction, examples=Uniform(),
        example_design=HartleyRao(),
    )  # fmt: skip
    way, found = compared(problem, method)
    assert found.weighted
    assert way.variance == pytest.approx(found.ways[correction].variance, rel=1e-9)
    assert way.excess == pytest.approx(found.ways[correction].excess, rel=1e-9)


def test_methods_of_one_name_get_numbers_and_others_are_refused():
    problem = small_problem()
    twice = [FedAvg(step_size=0.1, num_active=n) for n in (1, 2)]
    found = compare_ways(problem, num_active=L, params=MODEL, methods=twice)
    assert list(found.methods) == ["FedAvg", "FedAvg (2)"]
    one, two = found.methods.values()
    assert one.variance > two.variance
    with pytest.raises(TypeError, match="methods has 'FedAvg'"):
        compare_ways(problem, num_active=L, methods=["FedAvg"])
