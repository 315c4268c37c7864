"""The predicted error of every way, against sums written out over all rounds."""

from typing import Any

import numpy as np
import pytest

from isfed import EQUAL
from isfed.methods.model_average import first_averaged
from isfed.theory.noise_path import NoisePath
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
    found = path(agents=same, per_pass=per_pass).parts(step, rounds, averaged=averaged)
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


def test_averaging_and_passes_pay_and_more_rounds_lower_every_way():
    problem = EQUAL.replace(num_agents=30, num_examples=20).make()
    short, long = (predict_ways(problem, num_active=3, rounds=r) for r in (200, 800))
    assert all(long[name].excess < way.excess for name, way in short.items())
    for name in ("FedAvg", "importance"):
        assert long[f"{name}, averaged"].excess < long[name].excess
        assert long[f"{name}, passes"].excess < 1.05 * long[name].excess
    table = TunedWays(long, 800)
    assert table.gain("FedAvg") == 0.0
    assert table.advised.uploads == table.advised.gradients == 1.0
    assert table.answer().startswith("Use ")
