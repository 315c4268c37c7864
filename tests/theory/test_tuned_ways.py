"""The predicted error of every way, against sums written out over all rounds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from isfed import EQUAL, FederatedData, ISFedAvg, Logistic, Problem, simulate
from isfed.methods.iterate_average import first_averaged
from isfed.studies import ways_by_short_runs
from isfed.theory.budget_levels import NoisePath, typical_sum
from isfed.theory.learned_scores import LearnedScores
from isfed.theory.probabilities import choices_at
from isfed.theory.round_variance import curvature_variances, gradient_variances
from isfed.theory.tuned_ways import TunedWays, predict_ways

CURVED, START = np.array([0.5, 2.0]), np.array([3.0, -1.0])
NOISE = np.array([0.7, 0.2])


def path(**more):
    zero = np.zeros((2, 2))
    given: dict[str, Any] = {"agents": zero, "examples": zero} | more
    return NoisePath(CURVED, START, limit=1e9, **given)


def covariance(rounds, per_pass):
    """(T, T) of the noise of a direction whose variance is 1: independent, or none over a pass."""
    if per_pass == 1:
        return np.eye(rounds)
    whole = -(-rounds // per_pass) * per_pass
    one = (np.eye(per_pass) - 1.0 / per_pass) * per_pass / (per_pass - 1)
    return np.kron(np.eye(whole // per_pass), one)[:rounds, :rounds]


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("per_pass", [1, 4])
def test_the_variance_is_that_of_the_recursion(averaged, per_pass):
    step, rounds = 0.1, 22
    same = np.stack([NOISE, NOISE])
    mean, spread = path(agents=same, per_pass=per_pass).error(step, rounds, averaged=averaged)
    found = 0.5 * CURVED @ mean**2, 0.5 * CURVED @ spread
    bias = variance = 0.0
    for curvature, start, noise in zip(CURVED, START, NOISE, strict=True):
        shrink = 1.0 - step * curvature
        # Model t + 1 is shrink^(t+1) start plus step shrink^(t-j) s_j for all j up to t.
        models = np.array(
            [
                [step * shrink ** (t - j) if j <= t else 0.0 for j in range(rounds)]
                for t in range(rounds)
            ]
        )
        means = start * shrink ** np.arange(1, rounds + 1)
        shown = slice(first_averaged(rounds), None) if averaged else slice(rounds - 1, None)
        weights = models[shown].mean(axis=0)
        bias += 0.5 * curvature * means[shown].mean() ** 2
        variance += 0.5 * curvature * noise * weights @ covariance(rounds, per_pass) @ weights
    assert found == pytest.approx((bias, variance), rel=1e-6)


def test_a_level_is_reached_when_the_recursion_is_there():
    noisy, rounds, step = path(examples=np.stack([NOISE, NOISE])), 600, 0.02
    for averaged in (False, True):
        risks = [noisy._risk(step, t, averaged=averaged) for t in range(1, rounds + 1)]
        level = 1.5 * risks[-1]
        first = 1 + int(np.argmax(np.array(risks) <= level))
        found = noisy.reaches(level, step, rounds, averaged=averaged)
        assert found is not None
        assert 0 <= found - first <= rounds // 64 + 1
        assert noisy.reaches(0.5 * min(risks), step, rounds, averaged=averaged) is None


def test_averaging_and_passes_pay_and_more_rounds_lower_every_way():
    problem = EQUAL.replace(num_agents=30, num_examples=20).make()
    short, long = (predict_ways(problem, num_active=3, rounds=r) for r in (200, 800))
    assert all(long[name].excess < way.excess for name, way in short.items())
    for name in ("FedAvg", "importance"):
        assert long[f"{name}, averaged"].excess < long[name].excess
        assert long[f"{name}, passes"].excess < 1.05 * long[name].excess
    table = TunedWays(long, 800)
    assert table.gain("FedAvg") == 0.0
    names = "FedAvg", "importance", "importance, averaged"
    needed = [long[name].reaches or 0 for name in names]
    assert all(needed)
    assert needed == sorted(needed, reverse=True)
    assert needed[-1] < 800 / 2
    assert table.advised.uploads == table.advised.gradients == 1.0
    assert table.answer().startswith("Use ")
    chance = {n: replace(w, stderr_db=0.6 * abs(table.gain(n))) for n, w in long.items()}
    assert TunedWays(chance, 800).advised.name == "FedAvg"  # nothing is clearly better
    never = replace(long["FedAvg, averaged"], reaches=None, excess=np.inf)
    rows = TunedWays(long | {never.name: never}, 800).as_dict()["tuned"]
    shown = {row["name"]: (row["reaches"], row["excess"]) for row in rows}
    assert shown["FedAvg, averaged"] == (None, None)
    assert shown["importance"] == (long["importance"].reaches, long["importance"].excess)


def test_the_noise_grows_with_the_distance_as_the_curvatures_of_examples_say():
    problem = EQUAL.replace(num_agents=7, num_examples=6, batch_size=(1, 3)).make()
    method = ISFedAvg(step_size=1.0, num_active=3)
    pairs = [(method, choices_at(problem, method))]
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((2, 2)))[0]
    grown = curvature_variances(problem, pairs, rotate=basis)[0]
    here, *around = (
        gradient_variances(problem, pairs, params=problem.optimum + away, rotate=basis)[0]
        for away in (0.0 * basis[:, 0], 3.0 * basis[:, 1], -3.0 * basis[:, 1])
    )
    for part in ("agents", "examples"):
        apart = sum(getattr(one, part) for one in around) / 2.0 - getattr(here, part)
        assert getattr(grown, part)[:, 1] == pytest.approx(apart / 9.0, rel=1e-9)


def test_a_usual_run_is_the_mean_of_logarithms():
    rng, weights, fixed = np.random.default_rng(1), np.array([2.0, 0.3]), np.array([0.5, 0.0])
    runs = ((np.sqrt(weights) * rng.standard_normal((200_000, 2)) + np.sqrt(fixed)) ** 2).sum(
        axis=1
    )
    logs = np.log(runs + 0.1)
    found = np.log(typical_sum(weights, fixed, 0.1))
    assert abs(found - logs.mean()) < 4.0 * logs.std() / np.sqrt(logs.size)
    assert np.isclose(typical_sum(np.zeros(1), np.full(1, 2.0)), 2.0, rtol=1e-3)


def scores(**more):
    one, rows = np.ones((3, 1)), np.array([20.0, 4.0, 2.0])
    given: dict[str, Any] = {
        "turns": np.full(3, 0.5), "weights": np.array([1.0, 2.0, 3.0]), "squares": one,
        "growth": one, "unseen": np.full(3, 5.0), "start": rows[::-1], "settled": rows,
        "around": np.stack([rows * 2.0, rows / 1.6])[None], "risks": np.ones(1),
        "level": 1.0,
    }  # fmt: skip
    return LearnedScores(**given | more)


def test_how_likely_a_score_is_of_which_model_is_that_of_draws_one_by_one():
    found, rounds = scores(), 1600
    risk = np.where(np.arange(rounds) < 100, 1e9, 0.0)
    added, growth = found.of_examples(risk, 1.0)
    inverse = np.vstack([found.unseen, found.start, found.around[0]])
    chance, expected = np.eye(4)[:, :1] * np.ones(3), []
    for count in range(rounds):
        expected.append(found.weights @ ((chance * inverse).sum(axis=0) - found.settled))
        drawn = chance * found.turns / inverse
        made = np.array([0.0, 1.0, 0.0, 0.0] if risk[count] else [0.0, 0.0, 0.5, 0.5])
        chance = chance - drawn + made[:, None] * drawn.sum(axis=0)
    for part in (slice(400, 800), slice(1200, 1600)):
        assert added[part].mean() == pytest.approx(np.mean(expected[part]), rel=0.05)
    assert growth == pytest.approx(np.mean(expected[800:]), rel=0.05)
    # In the end low scores, which stay longest, count most.
    around = found.around[0]
    last = found.weights @ ((around**2).sum(axis=0) / around.sum(axis=0) - found.settled)
    assert added[-1] == pytest.approx(last, rel=0.02)


def test_where_the_loss_bends_a_few_runs_say_what_formulas_cannot():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((120, 3))
    y = np.where(x @ [2.0, -1.0, 0.5] + 0.3 * rng.standard_normal(120) > 0.0, 1.0, -1.0)
    data = FederatedData(x, y, np.arange(0, 121, 20))
    problem = Problem(data, Logistic(1e-3), 1, 4)
    found = ways_by_short_runs(problem, num_active=2, rounds=100)
    assert found.keys() == predict_ways(problem, num_active=2, rounds=100).keys()
    method = ISFedAvg(step_size=found["importance"].step_size, num_active=2)
    params = simulate(problem, method, rounds=95, repetitions=40, seed=7).params
    ends = np.array([problem.risk(model) for model in params]) - problem.risk(problem.optimum)
    apart = np.log(ends).mean() - np.log(found["importance"].typical)
    assert abs(apart) < 5.0 * np.log(ends).std() / np.sqrt(16.0)
