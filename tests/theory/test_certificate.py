"""The certificate passes every design and policy, and catches what is deliberately wrong."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from isfed import (
    PAPER,
    Current,
    Deville,
    FedAvg,
    FederatedData,
    HartleyRao,
    HierFAVG,
    ISFedAvg,
    LeastSquares,
    Memory,
    Oracle,
    Poisson,
    Problem,
    Running,
    Sampford,
    Systematic,
    Uniform,
    WithReplacement,
    certify,
)
from isfed.methods.by_score import ByScore
from isfed.methods.estimators import HorvitzThompson, Mean
from isfed.methods.federated import Federated
from isfed.methods.local_sgd import MomentumMean
from isfed.methods.local_steps import LocalSteps
from isfed.methods.passes_over_agents import Passes
from isfed.sampling.designs.outcomes import TooManyError, outcomes
from isfed.theory.unbiasedness import Certificate

POLICIES = [Uniform(), Oracle(), Current(), Running(), Memory()]
DESIGNS = [Systematic(), Deville(), HartleyRao(), Sampford(), Poisson(), WithReplacement()]
SMALL = PAPER.replace(num_agents=5, num_examples=4, local_steps=(1, 3), batch_size=(1, 3)).make()
SIZES = Problem(
    FederatedData.from_agents(
        [(np.eye(2)[:1].repeat(n, 0) * n, np.arange(n) - 1.0 * n) for n in (2, 5, 3)]
    ),
    LeastSquares(0.1),
    1,
    2,
)
LARGE = PAPER.replace(num_agents=30, num_examples=25, local_steps=(1, 3), batch_size=(1, 4)).make()


def isfedavg(policy=None, design=None, num_active=2):
    choices = {} if design is None else {"agent_design": design, "example_design": design}
    policy = policy or Memory()
    return ISFedAvg(
        step_size="auto", num_active=num_active, agents=policy, examples=policy, **choices
    )


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: type(d).__name__)
def test_what_is_right_passes_exactly(design, policy):
    found = certify(SMALL, isfedavg(policy, design))
    assert found.exact
    assert found.unbiased, str(found)
    assert found.largest < 1e-12


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_what_is_right_passes_by_sampling(policy):
    found = certify(LARGE, isfedavg(policy, HartleyRao(), 4), samples=400)
    assert not found.exact
    assert found.unbiased, str(found)
    assert np.all(found.stderr > 0.0)


class InOrder(Passes):
    """Passes that hear the first agents first: fair over a pass and in none of its rounds."""

    def plan(self, states, facts, points):
        super().plan(states, facts, points)
        for state in states:
            state.cohorts[:] = np.sort(state.cohorts, axis=None).reshape(state.cohorts.shape)


@pytest.mark.parametrize("policy", [Uniform(), Memory()], ids=["uniform", "memory"])
def test_every_round_of_a_pass_is_unbiased_over_the_plans_of_the_pass(policy):
    step = LocalSteps(1e-3, divide_by_steps=True)
    found = certify(SMALL, Federated(Passes(2, policy), step, HorvitzThompson()), samples=300)
    assert found.deviation.shape == (-(-SMALL.num_agents // 2), SMALL.num_params)
    assert found.unbiased, str(found)
    assert "passes of" in str(found)


def test_a_plan_that_favours_some_agents_in_a_round_is_caught():
    step = LocalSteps(1e-3, divide_by_steps=True, full_batch=True)
    whole = PAPER.replace(num_agents=6, num_examples=4, batch_size=(1, 2)).make()
    found = certify(whole, Federated(InOrder(2), step, HorvitzThompson()), samples=30)
    assert not found.unbiased
    # Over the pass nothing is wrong: only the check of single rounds finds it.
    assert np.allclose(found.deviation.mean(axis=0), 0.0, atol=1e-9 * found.scale)


class Renormalising(HorvitzThompson):
    """Divides by the sum of the weights: the self-normalised mean."""

    def combine(self, state, opened, updates, facts):
        step, state, evidence = super().combine(state, opened, updates, facts)
        return step * opened.cohort.num / self.counts(opened.cohort, facts).sum(), state, evidence


class Successive(Sampford):
    """NumPy's choice without replacement, as if it drew by inclusion probability."""

    def draw(self, inclusion: Any, rng: Any) -> np.ndarray:
        generator = np.random.default_rng(int(rng.uniforms(1)[0] * 2**53))
        num = round(inclusion.sum())
        return generator.choice(inclusion.size, num, replace=False, p=inclusion / num)


def test_a_renormalised_mean_is_caught():
    for problem, active in ((SMALL, 2), (LARGE, 4)):
        right = isfedavg(Oracle(), num_active=active)
        method = replace(right, step_size=0.01).federated
        assert certify(problem, method, rounds=0).unbiased
        found = certify(problem, replace(method, estimator=Renormalising("step")), rounds=0)
        assert not found.unbiased
    assert "BIASED" in str(found)


def test_numpys_choice_is_caught():
    problem = PAPER.replace(num_agents=8, num_examples=6, batch_size=(4, 4)).make()
    found = certify(problem, isfedavg(Oracle(), Successive(), 5), rounds=0, samples=1500)
    assert not found.exact  # what a subclass draws is not known
    assert not found.unbiased
    assert certify(problem, isfedavg(Oracle(), Sampford(), 5), rounds=0).unbiased


def test_samples_do_not_claim_what_a_list_of_all_outcomes_shows():
    words = {}
    for exact in (True, False):
        empty = np.zeros(1)
        words[exact] = str(Certificate(exact, 9, empty, empty, empty, 1.0, 0.999)).split(";")[0]
    assert words == {True: "unbiased", False: "no bias found"}


class WronglyDrawn(ByScore):
    """A sampler that does not draw as its design says."""

    def table(self, state, num_agents):
        table = super().table(state, num_agents)
        table.design = Successive()
        return table


def test_a_sampler_that_draws_otherwise_than_its_design_says_is_caught():
    recipe = PAPER.replace(num_agents=8, num_examples=6, batch_size=(6, 6), local_steps=(1, 1))
    problem, algorithm = recipe.make(), replace(isfedavg(Oracle(), num_active=5), step_size=0.01)
    assert certify(problem, algorithm, rounds=0).exact
    wrong = replace(algorithm.federated, sampler=WronglyDrawn(5, algorithm.agents))
    found = certify(problem, wrong, rounds=0, samples=3000)
    assert not found.exact
    assert not found.unbiased


def test_a_method_with_a_round_of_its_own_has_no_certificate():
    with pytest.raises(TypeError, match="must be made of parts"):
        certify(SMALL, HierFAVG(step_size=0.1))


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_a_plain_mean_is_unbiased_only_where_all_agents_count_the_same(how):
    """By size the mean over those drawn is a ratio of two sums."""
    parts = (ByScore(2, Uniform(), HartleyRao()), LocalSteps(0.01, divide_by_steps=True), Mean())
    found = certify(SIZES, Federated(*parts, client_weights=how), rounds=0)
    assert found.exact
    assert found.unbiased == (how == "uniform")


def test_momenta_that_agents_send_too_are_sampled():
    momenta = MomentumMean(0.9, nesterov=False, buffer="keep")
    local = LocalSteps(0.01, divide_by_steps=True)
    found = certify(SMALL, Federated(ByScore(2), local, momenta), samples=50)
    assert not found.exact


def test_rounds_that_diverge_give_no_certificate():
    algorithm = ISFedAvg(step_size=1e30, num_active=2)
    with pytest.raises(ValueError, match="the 60 rounds before diverged: step_size=1e"):
        certify(SMALL, algorithm, rounds=60)


@pytest.mark.parametrize("problem", [SMALL, LARGE], ids=["listed", "sampled"])
def test_a_missing_division_by_steps_is_caught(problem):
    assert not certify(problem, FedAvg(step_size="auto", num_active=2), rounds=0).unbiased
    fair = FedAvg(step_size="auto", num_active=2, divide_by_steps=True)
    assert certify(problem, fair, rounds=0).unbiased


def test_an_error_that_never_varies_is_caught():
    """Everybody is always heard, and the answer is always wrong by the same."""
    one = PAPER.replace(
        num_agents=3, num_examples=30, batch_size=(30, 30), local_steps=(2, 2)
    ).make()
    algorithm = ISFedAvg(step_size="auto", num_active=3, divide_by_steps=False)
    assert not certify(one, algorithm, rounds=0, samples=10).unbiased


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="num_active=9 exceeds num_agents=5"):
        certify(SMALL, isfedavg(num_active=9))
    with pytest.raises(ValueError, match="samples=1 must be at least 2"):
        certify(SMALL, isfedavg(), samples=1)


@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: type(d).__name__)
def test_outcomes_have_the_inclusion_probabilities(design):
    inclusion = np.array([0.2, 1.0, 0.7, 0.0, 0.6, 0.5])
    if isinstance(design, WithReplacement):
        inclusion[1] = 1.0
    total = np.zeros(6)
    chances = 0.0
    for units, chance in outcomes(design, inclusion):
        chances += chance
        for unit in units:
            total[unit] += chance
    assert chances == pytest.approx(1.0)
    np.testing.assert_allclose(total, inclusion, atol=1e-12)


@pytest.mark.parametrize("design", [Systematic(), Deville(), HartleyRao(), Sampford(), Poisson()])
def test_outcomes_have_the_joint_probabilities(design):
    inclusion = np.array([0.2, 0.35, 0.75, 0.6, 0.5, 0.6])
    joint = np.zeros((6, 6))
    for units, chance in outcomes(design, inclusion):
        joint[np.ix_(units, units)] += chance
    np.testing.assert_allclose(joint, design.joint(inclusion), atol=1e-12)


def test_too_many_outcomes_are_not_listed():
    for design in (Poisson(), Sampford(), HartleyRao()):
        with pytest.raises(TooManyError):
            outcomes(design, np.full(40, 0.5) * np.linspace(0.8, 1.2, 40))
