"""How agents are drawn by scores of few turns, against turns one by one and against runs."""

from dataclasses import replace

import numpy as np
import pytest

from isfed import EQUAL, OUTLIERS, ISFedAvg, LeastSquares, Problem, simulate
from isfed.sampling.designs import inclusion_probabilities
from isfed.theory.agent_score_noise import RATE, STAGES, averages, inclusion_over
from isfed.theory.composition_variance import turns_of
from isfed.theory.round_curvature import local_drift
from isfed.theory.tuned_ways import noise_paths, predict_ways, ways_to_learn


@pytest.mark.parametrize("plain", [False, True])
def test_averages_are_those_over_turns_at_random_times(plain):
    rounds, heard, count = 320, 0.05, 20_000
    shown = np.exp(-np.arange(rounds) / 60.0)
    rng = np.random.default_rng(0)
    average, turns = np.zeros(count), np.zeros(count)
    mean, variance = averages(shown, -np.log1p(-heard), RATE, plain=plain)
    for at, now in enumerate(shown):
        drawn = rng.random(count) < heard
        rate = np.maximum(RATE, 1.0 / (turns + 1.0)) if plain else np.where(turns > 0, RATE, 1.0)
        average += drawn * rate * (now - average)
        turns += drawn
        if at in (59, 119, 319):
            seen = average[turns > 0]
            # Every agent is taken to have had the expected number of turns: exact without `plain`.
            assert mean[at, 0] == pytest.approx(seen.mean(), rel=0.15 if plain else 0.03)
            assert variance[at, 0] == pytest.approx(seen.var(), rel=0.4 if plain else 0.05)


def test_of_a_single_history_the_probabilities_are_those_of_a_draw():
    scores = np.array([0.1, 1.0, 2.0, 40.0, 3.0])
    found, weights = inclusion_over(scores[None, :, None], np.zeros(1), 2.0, 0.1)
    assert found[0, :, 0] == pytest.approx(inclusion_probabilities(scores, 2, floor=0.1))
    assert found[0, :, 0].max() == 1.0
    assert weights.ravel().tolist() == [1.0, 0.0]
    never = inclusion_over(scores[None, :, None], np.array([0.3]), 2.0, 0.1)
    assert (never[0] * never[1]).sum() == pytest.approx(2.0)  # those heard and those never heard


@pytest.mark.parametrize("name", ["importance", "control variates"])
def test_what_young_scores_cost_is_what_runs_show(name):
    problem, rounds, count = OUTLIERS.replace(num_agents=100).make(), 1000, 100
    found = noise_paths(problem, num_active=2, rounds=rounds)[name]
    step = predict_ways(problem, num_active=2, rounds=rounds)[name].step_size
    assert found.scores is not None
    ages, whole = found.scores.agents, found.curvature * found.start**2
    assert ages is not None
    shrink = (1.0 - step * found.curvature) ** (2.0 * ages.times[:, None])
    away, turns = np.sqrt(shrink @ whole / whole.sum()), ages.heard * rounds / STAGES
    squares = ages.squares(away, turns, turns * count)[-1:]
    chances, weights = inclusion_over(np.sqrt(squares), np.zeros(1), 2.0, ages.floor)
    parts = ways_to_learn(2, local_steps=5)["importance"].parts()
    sent = turns_of(problem, parts, problem.optimum)
    noise = sent.noise + (name == "importance") * (sent.means**2).sum(axis=1)
    predicted = noise @ (weights / chances).sum(axis=2)[0] / (noise / ages.settled).sum()
    way = replace(ways_to_learn(2, local_steps=5)[name], step_size=step)
    prob = simulate(problem, way, rounds=rounds, repetitions=20).agent_prob
    runs = (noise / (2.0 * prob)).sum(axis=1) / (noise / ages.settled).sum()
    # The standard error of the runs' mean is below 3%; without young scores it would be 1.
    assert runs.std(ddof=1) / np.sqrt(20) < 0.03 * runs.mean()
    assert runs.mean() > 1.4
    assert abs(np.log(predicted / runs.mean())) < 0.25


def test_weights_on_the_steps_move_the_point_where_the_mean_round_stands_still():
    problem = EQUAL.replace(num_agents=6, num_examples=8, noise_variance=(0.5, 2.0)).make()
    problem = Problem(problem.data, LeastSquares(1e-3), np.array([1, 2, 3, 4, 5, 5]), 8)
    weight, mu = np.array([0.4, 0.7, 1.0, 1.3, 2.0, 3.0]), 1e-3
    model, steps = problem.optimum.copy(), problem.local_steps

    def gradient(agent: int, at: np.ndarray) -> np.ndarray:
        x, y = problem.data.agent(agent)
        return problem.loss.gradient(at, x, y, np.ones(len(y)))[0]

    for _ in range(4000):
        change = np.zeros_like(model)
        for agent in range(6):
            local = model.copy()
            for _ in range(steps[agent]):
                local -= mu * weight[agent] / steps[agent] * gradient(agent, local)
            change += (local - model) / weight[agent] / 6.0
        model += 20.0 * change  # faster to the same point
    excess = problem.risk(model) - problem.risk(problem.optimum)
    means = np.array([gradient(agent, problem.optimum) for agent in range(6)])
    assert local_drift(problem, problem.optimum, means, mu, weight[:, None]) == pytest.approx(
        excess, rel=0.02
    )
    unweighted = local_drift(problem, problem.optimum, means, mu)
    assert not np.isclose(unweighted, excess, rtol=0.2)
    assert ISFedAvg(step_size=0.1, num_active=2).weighting in (None, "step")
