"""Telemetry against what it says it is."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from isfed import (
    OUTLIERS,
    PAPER,
    VRB,
    FedAvg,
    ISFedAvg,
    Memory,
    Oracle,
    Uniform,
    simulate,
)
from isfed.federation.object_agents import ObjectAgents
from isfed.methods.object_federation import Federation
from isfed.sampling.policies import Table
from isfed.sampling.telemetry import COLUMNS
from isfed.theory import gradient_variance

SMALL = PAPER.replace(num_agents=12, num_examples=8, local_steps=(1, 1), batch_size=(2, 4)).make()


def overhear(agent, params, heard, num, stream):
    """Draw as ever, and write down what was drawn."""
    units, prob = Table.draw(agent.table, num, stream)
    heard.append((agent.index, units, prob, agent.norms_at(params)[0][units]))
    return units, prob


def test_a_round_is_what_its_draws_say():
    """Every column from the definitions, with the draws overheard; E_k = 1."""
    algorithm = ISFedAvg(step_size=0.01, num_active=5)
    made = Federation(SMALL, algorithm, seed=3, repetition=0, initial=np.zeros(2))
    for i in range(40):
        heard = []
        before = made.params.copy()
        for agent in made.agents:
            agent.table.draw = partial(overhear, agent, before, heard)
        inclusion = made.table.inclusion(5)
        made.step(i)
        row = dict(zip(COLUMNS, made.watched.tolist(), strict=True))
        weight = {k: 5 / (12 * inclusion[k]) for k, *_ in heard}
        largest = max(weight[k] * np.max(1 / (8 * prob)) for k, _, prob, _ in heard)
        assert row["largest_weight"] == pytest.approx(largest, rel=1e-6)
        values = np.array(list(weight.values()))
        size = values.sum() ** 2 / (values**2).sum()
        assert row["effective_agents"] == pytest.approx(size, rel=1e-6)
        capped = np.mean([inclusion[k] >= 1 - 1e-9 for k in weight])
        assert row["agents_at_cap"] == pytest.approx(capped)
        floored = np.mean([inclusion[k] / 5 <= 0.2 / 12 for k in weight])
        assert row["agents_at_floor"] == pytest.approx(floored)
        shares = [np.mean(len(p) * p >= 1 - 1e-9) for _, _, p, _ in heard]
        assert row["examples_at_cap"] == pytest.approx(np.mean(shares))
        moment = uniform = 0.0
        for k, units, prob, norms in heard:
            x, y = SMALL.data.agent(k)
            w = 1 / (8 * prob)
            estimate, _ = SMALL.loss.gradient(before, x[units], y[units], w)
            square = estimate @ estimate
            moment += square * weight[k] ** 2 / 5
            more = np.mean(norms**2 * (w - w**2)) / len(units)
            uniform += (square + more) * weight[k] / 5
        assert row["moment"] == pytest.approx(moment, rel=1e-5)
        assert row["uniform_moment"] == pytest.approx(uniform, rel=1e-5)


def test_a_sampler_without_a_policy_is_watched_too():
    method: Any = VRB(step_size=0.01, num_active=5, horizon=10).federated
    agents = ObjectAgents(SMALL, method.rules(12), seed=3, repetition=0)
    state, weight = method.start(agents, np.zeros(2)), np.ones(1)
    for i in range(6):
        state, info = method.step(state, agents, i)
        row = dict(zip(COLUMNS, method.telemetry(method.facts(agents), info), strict=True))
        weight, times = 1.0 / (12.0 * info.cohort.prob), info.cohort.times
        assert row["largest_weight"] == pytest.approx(weight.max(), rel=1e-6)
        size = (times @ weight) ** 2 / (times @ weight**2)
        assert row["effective_agents"] == pytest.approx(size, rel=1e-6)
    assert weight.max() > 1.01


def test_uniform_sampling_has_nothing_to_tell():
    history = simulate(SMALL, FedAvg(step_size=0.01, num_active=5), rounds=4, repetitions=2)
    assert history.telemetry.shape == (2, 4, len(COLUMNS))
    assert np.all(history.watched("largest_weight") == 1.0)
    assert np.all(history.watched("effective_agents") == 5.0)
    assert np.all(history.variance_ratio() == 1.0)


def test_the_running_ratio_is_that_of_the_variances():
    problem = OUTLIERS.replace(num_agents=60, num_examples=40, local_steps=(1, 2)).make()
    policy = Oracle(floor=0.05)
    algorithm = ISFedAvg(step_size=1e-4, num_active=4, agents=policy, examples=policy)
    uniform = ISFedAvg(step_size=1e-4, num_active=4, agents=Uniform(), examples=Uniform())
    exact = gradient_variance(problem, uniform).total / gradient_variance(problem, algorithm).total
    history = simulate(problem, algorithm, rounds=3000, repetitions=10, initial=problem.optimum)
    means = [history.watched(name).mean(axis=1) for name in ("uniform_moment", "moment")]
    ratios = means[0] / means[1]
    stderr = ratios.std(ddof=1) / np.sqrt(10)
    # Without replacement there is a little less of both: a tenth is allowed for it.
    assert abs(ratios.mean() - exact) < 4 * stderr + 0.1 * exact
    assert np.abs(history.variance_ratio(rate=0.001)[:, -1] / exact - 1).mean() < 0.5


def test_a_cap_and_a_floor_are_seen():
    history = simulate(SMALL, ISFedAvg(step_size=0.01, num_active=11), rounds=200, repetitions=2)
    assert history.watched("agents_at_cap").mean() > 0.2
    floor = ISFedAvg(
        step_size=0.01, num_active=3, agents=Memory(floor=0.9), examples=Memory(floor=0.9)
    )
    history = simulate(SMALL, floor, rounds=200, repetitions=2)
    assert history.watched("agents_at_floor").mean() > 0.9
    assert history.watched("examples_at_floor").mean() > 0.9


def test_unknown_columns_and_rates_are_named():
    history = simulate(SMALL, FedAvg(step_size=0.01, num_active=5), rounds=1)
    with pytest.raises(ValueError, match="column='weight' must be one of largest_weight"):
        history.watched("weight")
    with pytest.raises(ValueError, match="rate=0"):
        history.variance_ratio(rate=0)
