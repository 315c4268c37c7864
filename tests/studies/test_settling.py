"""Settled or not: decided from the change between the last two quarters, beyond its error."""

import math

import numpy as np
import pytest

from isfed import PAPER, FedAvg, simulate
from isfed.studies.results_summary import LevelChange, level_change


def noise(repetitions, rounds, seed=0):
    return np.random.default_rng(seed).chisquare(2, (repetitions, rounds))


def test_noise_around_a_level_has_settled_about_as_often_as_two_errors_say():
    settled = [level_change(noise(20, 400, seed)).settled for seed in range(200)]
    # 4.6% of normal changes exceed two standard errors, a little more with 20 repetitions;
    # the standard error of such a share of 200 is 1.7%.
    assert settled.count(False) <= 25
    assert settled.count(None) == 0


def test_a_fall_or_a_rise_is_seen():
    trend = np.linspace(1.0, 0.2, 400)
    falling = level_change(noise(20, 400) * trend)
    assert falling.settled is False
    assert falling.change_db < -1.0
    rising = level_change(noise(20, 400) * trend[::-1])
    assert rising.settled is False
    assert rising.change_db > 1.0


def test_a_change_that_nobody_quotes_does_not_count():
    level = np.r_[np.full(200, 1.02), np.ones(100)][None] * np.ones((50, 1))
    found = level_change(level * (1 + 1e-6 * noise(50, 300)))
    assert abs(found.change_db) > 2 * found.stderr_db
    assert found.settled


def test_too_few_to_tell():
    assert level_change(noise(1, 400)).settled is None
    assert level_change(noise(2, 4)).settled is None
    assert level_change(np.ones((5, 1))).settled is None
    assert LevelChange(0.3, 2.0).settled is None
    assert math.isnan(level_change(np.zeros((3, 8))).change_db)


@pytest.mark.parametrize(("rounds", "settled"), [(60, False), (1500, True)])
def test_a_short_run_of_the_regression_says_so(rounds, settled):
    history = simulate(
        PAPER.make(), FedAvg(step_size=0.01, num_active=6, divide_by_steps=True), rounds=rounds,
        repetitions=20,
    )  # fmt: skip
    assert level_change(history.msd).settled is settled
