"""Privacy in numbers: published figures, equal losses, and an audit that stays below them."""

import math

import numpy as np
import pytest
from audit import SameClip, audit, audit_code, stated

from isfed.federation.privacy_loss import (
    NUM_LEVELS,
    epsilons,
    equal_noise,
    level_of,
    levels,
)

pytest.importorskip("dp_accounting")
UNIFORM, ROUNDS, DELTA = 0.1, 200, 1e-5


def epsilon(inclusion: float, noise: float, *, rounds: int = ROUNDS, delta: float = DELTA) -> float:
    level = int(level_of(np.array([inclusion]), inclusion)[0])
    spent = np.zeros((1, NUM_LEVELS), np.int64)
    spent[0, level] = rounds
    return float(epsilons(spent, {level: noise}, uniform=inclusion, delta=delta)[0])


@pytest.mark.parametrize(
    ("inclusion", "noise", "wanted"),
    [
        (0.1, 1.0, 9.97),
        (0.02, 1.0, 1.85),  # everybody's weighted change is clipped alike: who is drawn less
        (0.5, 1.0, 64.2),  # loses less, and who is drawn more loses more
        (0.02, 0.2, 146.5),  # every change is clipped alike before it is weighted
        (0.5, 5.0, 6.70),
    ],
)
def test_known_figures(inclusion, noise, wanted):
    assert epsilon(inclusion, noise) == pytest.approx(wanted, rel=2e-3)


@pytest.mark.parametrize(
    ("inclusion", "clip"), [(0.02, 0.37), (0.05, 0.69), (0.1, 1.0), (0.2, 1.26), (0.5, 1.41)]
)
def test_clips_of_equal_loss(inclusion, clip):
    """In units of the clip at L / K: the weight is L / (K inclusion)."""
    own = equal_noise(inclusion, uniform=UNIFORM, noise=1.0, rounds=ROUNDS, delta=DELTA)
    assert inclusion / UNIFORM / own == pytest.approx(clip, abs=0.006)


def test_one_gaussian_round_is_the_closed_form():
    """Balle and Wang (2018): delta of one unsampled Gaussian mechanism."""
    found, noise = epsilon(1.0, 2.0, rounds=1, delta=0.01), 2.0
    normal = lambda x: 0.5 * math.erfc(-x / math.sqrt(2.0))  # noqa: E731
    delta = normal(0.5 / noise - found * noise) - math.exp(found) * normal(
        -0.5 / noise - found * noise
    )
    assert delta == pytest.approx(0.01, rel=1e-3)


def test_levels_round_up_and_hold_the_uniform_probability():
    grid = levels(0.03)
    assert grid[-1] == 1.0
    assert (np.diff(grid) >= 0.0).all()
    chances = np.array([0.03, 0.0300001, 0.5, 1.0, 1e-9])
    rounded = grid[level_of(chances, 0.03)]
    assert (rounded >= chances * (1 - 1e-12)).all()
    assert rounded[0] == 0.03
    assert rounded[2] < 0.6


def test_released_scores_add_their_own_loss():
    spent = np.zeros((1, NUM_LEVELS), np.int64)
    alone = epsilons(spent, {}, uniform=0.1, delta=DELTA, scores=(2.0, 3))
    assert alone[0] == pytest.approx(1.5, rel=1e-3)  # three times 1 / 2
    spent[0, level_of(np.array([0.1]), 0.1)] = 10
    level = int(np.flatnonzero(spent[0])[0])
    both = epsilons(spent, {level: 2.0}, uniform=0.1, delta=DELTA, scores=(2.0, 3))
    without = epsilons(spent, {level: 2.0}, uniform=0.1, delta=DELTA)
    assert without[0] < both[0] <= without[0] + 1.5 + 1e-3
    nothing = epsilons(np.zeros((2, NUM_LEVELS), np.int64), {}, uniform=0.1, delta=DELTA)
    assert nothing.tolist() == [0.0, 0.0]


def test_an_audit_stays_below_epsilon_and_finds_what_the_same_clip_for_all_would_leak():
    """By the likelihood ratio over 10^5 runs in each world."""
    rounds, runs = 30, 100_000
    at_uniform = stated(0.1, 1.0, rounds=rounds)
    own = equal_noise(0.5, uniform=0.1, noise=1.0, rounds=rounds, delta=DELTA)
    assert 0.3 < audit(0.1, 1.0, rounds=rounds, runs=runs) <= at_uniform
    assert 0.3 < audit(0.5, own, rounds=rounds, runs=runs) <= stated(0.5, own, rounds=rounds)
    # Without it an agent that is drawn five times as often loses more than was stated.
    assert audit(0.5, 1.0, rounds=rounds, runs=runs) > at_uniform


def test_an_audit_of_the_estimator_itself():
    rounds, wanted = 10, stated(0.1, 1.0, rounds=10)
    for inclusion in (0.1, 0.9):
        assert audit_code(inclusion, 1.0, rounds=rounds, runs=1000) <= wanted
    assert audit_code(0.9, 1.0, rounds=rounds, runs=1000, kind=SameClip) > wanted
