"""Response rates, and weights that are unbiased if absences do not depend on the gradient."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from small_federations import regression

from isfed import ISFedAvg
from isfed.federation.messages import Cohort, Facts, Timing, Updates, Work
from isfed.federation.object_agents import ObjectAgents
from isfed.federation.response_rates import WINDOW, Absences, Responses
from isfed.federation.safety import Safety
from isfed.methods.estimators import AdjustedState, HorvitzThompson, InverseResponse
from isfed.methods.federated import Opened
from isfed.methods.over_network import over_network


def weights_times_answers(rates, turns, seed):
    """(turns, agents): 1{answered} / r as estimated, for agents that are drawn in every turn."""
    rng = np.random.default_rng(seed)
    responses, agents = Responses(rates.size), np.arange(rates.size)
    out = np.empty((turns, rates.size))
    for turn in range(turns):
        answered = rng.random(rates.size) < rates
        out[turn] = answered * responses.inverse_rates(agents)
        responses.record(agents, answered)
    return out


def deviation(values):
    """Of the mean over independent agents from 1, in standard errors."""
    per_agent = values.mean(axis=0)
    return (per_agent.mean() - 1.0) / (per_agent.std(ddof=1) / np.sqrt(per_agent.size))


def test_unbiased_from_the_first_turns_on_when_all_rates_are_equal():
    # Once anything at all is known: at the first turn of all, nobody has ever been absent.
    values = weights_times_answers(np.full(4000, 0.7), 60, seed=1)
    assert abs(deviation(values[1:])) < 4.0


def test_unbiased_for_different_rates_once_the_window_is_full():
    rates = np.random.default_rng(2).uniform(0.4, 1.0, 4000)
    values = weights_times_answers(rates, 200, seed=2)
    assert abs(deviation(values[80:])) < 4.0
    low = rates < 0.5
    assert abs(deviation(values[80:, low])) < 4.0


def test_the_obvious_estimate_would_be_biased():
    """Why not 1 / (share of the last WINDOW turns answered): the test above can tell."""
    rng = np.random.default_rng(3)
    shares = np.maximum(rng.binomial(WINDOW, 0.7, 4000), 1) / WINDOW
    values = (rng.random((60, 4000)) < 0.7) / shares
    assert deviation(values) > 4.0


def test_no_absences_gives_exactly_one():
    responses, agents = Responses(5), np.arange(5)
    assert "response rates are not known" in responses.bias_report()
    for _ in range(3 * WINDOW):
        assert (responses.inverse_rates(agents) == 1.0).all()
        responses.record(agents, np.ones(5, bool))
    assert "answered in every round that waited for all" in responses.bias_report()


def test_state_goes_on_where_it_stopped():
    rng = np.random.default_rng(4)
    one, agents = Responses(6), np.arange(6)
    for turn in range(50):
        if turn == 20:
            two = Responses(6)
            two.restore(one.state())
        answered = rng.random(6) < 0.6
        one.record(agents, answered)
        if turn >= 20:
            two.record(agents, answered)
    assert (one.inverse_rates(agents) == two.inverse_rates(agents)).all()
    assert (one.rates() == two.rates()).all()


def test_report_says_how_unequal_agents_count():
    responses = Responses(2)
    for turn in range(10):
        responses.record(np.arange(2), np.array([True, turn < 4]))
    assert "14 of 20 times" in responses.bias_report()
    assert "count 0.40 to 1.00" in responses.bias_report()
    assert responses.rates() == pytest.approx([1.0, 0.4])


def test_simulations_and_federations_have_one_limit():
    """An agent that answered once in 100 turns counts five times, here and there."""
    responses, agents = Responses(2), np.arange(2)
    responses.record(agents, np.array([True, True]))
    for turn in range(400):
        responses.record(agents, np.array([turn % 100 == 0, turn % 2 == 0]))
    assert responses.inverse_rates(agents)[0] > 20.0
    np.testing.assert_allclose(responses.adjustments(agents), [5.0, 2.0])
    np.testing.assert_allclose(responses.adjustments(agents, most=1.5), [1.5, 1.5])
    kept = responses.kept()
    algorithm = ISFedAvg(step_size=0.1, num_active=2)
    method = replace(algorithm, absences="adjusted").federated
    problem = regression(sizes=(3, 4), batch_size=1)
    simulated = ObjectAgents(problem, method.rules(2), seed=0, repetition=0)
    seen, inner = [], method.estimator.inner
    estimator = InverseResponse(
        SimpleNamespace(
            combine=lambda state, opened, updates, facts: (
                seen.append(updates.factor) or inner.combine(state, opened, updates, facts)
            )
        )
    )
    opened = method.open(method.start(simulated, np.zeros(3)), simulated, 0)
    updates = simulated.train(opened.cohort, opened.sent, opened.work, 0)
    opened = opened._replace(cohort=opened.cohort._replace(agents=agents))
    estimator.combine(
        AdjustedState((), kept, np.zeros(0)), opened, updates, method.facts(simulated)
    )
    (weight,) = seen
    safety = Safety(absences=Absences.ADJUSTED)
    federation = over_network(algorithm, num_agents=2, safety=safety, weighting="step").estimator
    assert replace(federation, repays=False) == method.estimator
    np.testing.assert_array_equal(weight, [5.0, 2.0])


@pytest.mark.parametrize("patience", [1.0, 0.25])
def test_an_agent_is_paid_back_what_its_missed_turns_were_worth_and_no_more(patience):
    """Agent by agent, with the same estimates of 1 / r_k."""
    rng = np.random.default_rng(3)
    estimator = InverseResponse(HorvitzThompson(), repays=True, patience=patience)
    facts = Facts(6, 1, 1, None, None, None, None)
    state = estimator.init(facts, np.zeros(1))
    literal, owed, paid, worth = Responses(6), np.zeros(6), np.zeros(6), np.zeros(6)
    for _ in range(400):
        drawn = rng.permutation(6)[:3]
        cohort = Cohort(drawn, 3, np.ones(3), rng.uniform(0.1, 0.4, 3), 0.1)
        place = np.flatnonzero(rng.random(3) < 0.2 + 0.1 * drawn)
        waited = rng.random() < patience
        updates = Updates(
            place, np.ones((place.size, 1)), np.ones(place.size), np.zeros((place.size, 4)),
            np.zeros((place.size, 0)), factor=np.ones(place.size), asked=np.ones(3, bool),
            timing=Timing.unknown(3)._replace(patient=waited),
        )  # fmt: skip
        expected, weights = 0.0, 1.0 / (6 * cohort.prob)
        rates = literal.adjustments(drawn)
        for i, k in enumerate(drawn):
            if i in place:
                extra = min(weights[i] * (rates[i] - 1.0), owed[k])
                owed[k] -= extra
                expected += (weights[i] + extra) / 3
                paid[k] += weights[i] + extra
                worth[k] += weights[i]
            elif waited:
                owed[k] += weights[i] / patience
                worth[k] += weights[i] / patience
        literal.record_round(drawn, updates)
        opened = Opened(cohort, np.zeros(1), Work(0.1), None)
        step, state, _ = estimator.combine(state, opened, updates, facts)
        assert step[0] == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(state.owed, owed, atol=1e-9)
    assert (paid <= worth + 1e-9).all()
    assert paid.sum() > 0.85 * worth.sum()
