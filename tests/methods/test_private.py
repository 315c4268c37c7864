"""Clipping that nobody gains by, public probabilities, and what every agent has lost."""

import numpy as np
import pytest

from isfed import (
    PAPER,
    ByScore,
    Deville,
    Federated,
    HorvitzThompson,
    LocalSteps,
    Poisson,
    Uniform,
    simulate,
)
from isfed.federation.compiled_agents import CompiledAgents
from isfed.federation.messages import Cohort, Facts, Updates, Work
from isfed.federation.privacy_loss import MOST_PUSH, levels
from isfed.federation.safety import Privacy, ScoreRange
from isfed.methods.estimators import Extrapolated, InverseResponse
from isfed.methods.federated import Opened
from isfed.methods.private import Private, ReleasedScores

K, L = 8, 2
FACTS = Facts(K, 2, 2, None, None, None, None)


def drawn(chances: np.ndarray) -> Cohort:
    """Everybody, with these inclusion probabilities."""
    return Cohort(np.arange(K), L, np.ones(K), chances / L, chances=chances)


@pytest.mark.parametrize("on", ["step", "change"])
def test_a_rogue_gains_nothing_by_being_drawn_often(on):
    """E of what it can add to a step, inclusion x limit / L, is clip / K whatever it reports."""
    chances = np.full(K, 0.1)
    chances[0] = L - 0.1 * (K - 1)
    cohort = drawn(chances)._replace(chances=None)
    limits = Private(HorvitzThompson(on), Privacy(clip=3.0)).limits(cohort, FACTS)
    np.testing.assert_allclose(chances * limits / L, 3.0 / K)


def test_what_is_clipped_is_the_change_before_its_weight():
    estimator = Private(HorvitzThompson(), Privacy(clip=1e-3))
    problem = PAPER.replace(num_agents=K, num_examples=10).make()
    plain = Federated(ByScore(L), LocalSteps(0.01), HorvitzThompson())
    loose = Federated(ByScore(L), LocalSteps(0.01), Private(HorvitzThompson(), Privacy(clip=1e9)))
    tight = Federated(ByScore(L), LocalSteps(0.01), estimator)
    runs = [simulate(problem, method, rounds=30).params for method in (plain, loose, tight)]
    assert (runs[0] == runs[1]).all()
    assert (runs[0] != runs[2]).any()


def test_all_agents_lose_the_same_privacy():
    pytest.importorskip("dp_accounting")
    problem = PAPER.replace(num_agents=K, num_examples=10).make()
    privacy = Privacy(clip=1.0, noise=2.0, rounds=12)
    sampler = ReleasedScores(L, every=6, noise=20.0, scores=ScoreRange(0.1, 10.0))
    method = Federated(sampler, LocalSteps(0.01), Private(HorvitzThompson(), privacy))
    agents = CompiledAgents(problem, method.rules(K), seed=0, repetition=0)
    state = method.start(agents, np.zeros(problem.num_params))
    for i in range(12):
        state = method.round(state, agents, i)
    assert state.estimator.spent.sum() == 12 * K
    chances = levels(L / K)[np.nonzero(state.estimator.spent)[1]]
    assert chances.max() > 1.5 * chances.min()  # probabilities do differ
    lost = method.estimator.epsilons(state.estimator, L)
    assert lost.max() < 1.25 * lost.min()
    more = method.estimator.epsilons(state.estimator, L, scores=sampler.released(12))
    assert (more > lost).all()
    assert (more <= lost + 2 / sampler.multiplier + 1e-3).all()


def test_a_rogue_that_is_drawn_often_gains_little_by_equal_losses():
    """Equal losses alone would let it push 1.4 times; it is clipped to 1.2 and loses less."""
    pytest.importorskip("dp_accounting")
    chances = np.array([0.9, 0.5, 0.3, 0.25, 0.2, 0.1, 0.05, 0.02])
    estimator = Private(HorvitzThompson(), Privacy(clip=3.0, noise=1.0, rounds=200))
    push = chances * estimator.limits(drawn(chances), FACTS) / L / (3.0 / K)
    print("push over the fair one, by inclusion 0.9 to 0.02:", push.round(2))
    assert push.max() <= MOST_PUSH
    assert push[0] == pytest.approx(MOST_PUSH, rel=0.2)  # inclusion is rounded up to a level
    assert (np.diff(push) <= 0.0)[3:].all()


@pytest.mark.parametrize("design", [Deville(), Poisson()])
def test_noise_under_learned_probabilities_is_refused(design):
    """An agent's old score moves the weights of others also while it is not drawn."""
    estimator = Private(HorvitzThompson(), Privacy(clip=1.0, noise=1.0))
    with pytest.raises(ValueError, match="sampler ByScore does not give: learned scores tell"):
        Federated(ByScore(L, design=design), LocalSteps(0.01), estimator)
    clipped = Private(HorvitzThompson(), Privacy(clip=1.0))
    Federated(ByScore(L, design=design), LocalSteps(0.01), clipped)


def test_with_noise_nothing_that_looks_at_single_changes_goes_around_or_into_it():
    privacy = Privacy(clip=1.0, noise=1.0)
    for around in (InverseResponse, Extrapolated):
        with pytest.raises(ValueError, match=f"{around.__name__} uses what each agent sent"):
            around(Private(HorvitzThompson(), privacy))
        around(Private(HorvitzThompson(), Privacy(clip=1.0)))
    with pytest.raises(ValueError, match="for a plain sum of changes, and Extrapolated is none"):
        Private(Extrapolated(HorvitzThompson()), privacy)


def test_no_epsilon_without_independent_draws():
    problem = PAPER.replace(num_agents=K, num_examples=10).make()
    for sampler, stated in (
        (ByScore(L, Uniform()), False),  # a fixed number: who is not drawn tells of the others
        (ByScore(L, Uniform(), Poisson()), True),
    ):
        estimator = Private(HorvitzThompson(), Privacy(clip=1.0, noise=1.0))
        method = Federated(sampler, LocalSteps(0.01), estimator)
        agents = CompiledAgents(problem, method.rules(K), seed=0, repetition=0)
        state = method.round(method.start(agents, np.zeros(problem.num_params)), agents, 0)
        assert state.estimator.spent.any() == stated
        assert ("No epsilon is stated: in a cohort of" in estimator.statement(sampler)) != stated
        if not stated:
            with pytest.raises(
                ValueError, match="no epsilon can be stated: it needs noise above 0"
            ):
                estimator.epsilons(state.estimator, L)


def test_noise_of_scores_needs_a_range_above_zero():
    with pytest.raises(ValueError, match="needs a score range that begins above 0"):
        ReleasedScores(L, scores=ScoreRange(0.0, 1.0))


def test_where_nobody_answers_the_model_stays_unless_that_itself_is_hidden():
    estimator = Private(HorvitzThompson(), Privacy(clip=1.0, noise=1.0))
    nobody = Updates(
        np.empty(0, np.int64), np.empty((0, 2)), np.empty(0), np.empty((0, 4)), np.empty((0, 0))
    )
    cohort = Cohort(np.empty(0, np.int64), L, np.empty(0), np.empty(0))
    for chances, moves in ((None, False), (np.full(K, L / K), True)):
        opened = Opened(cohort._replace(chances=chances), np.zeros(2), Work(0.1), None)
        step, _, _ = estimator.combine(estimator.init(FACTS, np.zeros(2)), opened, nobody, FACTS)
        assert step.any() == moves
