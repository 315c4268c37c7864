"""Privacy in numbers: published figures, equal losses, and an audit that stays below them."""

import math

import numpy as np
import pytest
from scipy.stats import beta

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
        (0.5, 5.0, 6.70),  # every change is clipped alike before it is weighted
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


def audit(inclusion: float, noise: float, *, rounds: int, runs: int, delta: float) -> float:
    """A lower bound on epsilon that holds with 99%: how well the best test tells two worlds apart.

    In one world the agent sends a change of the largest length whenever it is drawn, in the other
    nothing. The test is the likelihood ratio of all rounds; its threshold is found on other runs.
    """
    rng = np.random.default_rng(0)

    def ratio(present: bool) -> np.ndarray:
        total = np.zeros(2 * runs)
        for _ in range(rounds):
            sent = present * (rng.random(2 * runs) < inclusion)
            seen = sent + noise * rng.standard_normal(2 * runs)
            total += np.log1p(inclusion * np.expm1((2.0 * seen - 1.0) / (2.0 * noise**2)))
        return total

    here, away = ratio(True), ratio(False)
    tune, test = slice(0, runs), slice(runs, None)

    def bound(part: slice, threshold: float) -> float:
        hits, false = (here[part] > threshold).sum(), (away[part] > threshold).sum()
        low = beta.ppf(0.005, hits, runs - hits + 1) if hits else 0.0
        high = beta.ppf(0.995, false + 1, runs - false)
        return math.log(max(low - delta, 1e-300) / high)

    best = max(
        np.quantile(away[tune], [0.5, 0.9, 0.99, 0.999, 0.9995]), key=lambda t: bound(tune, t)
    )
    return bound(test, best)


def test_an_audit_stays_below_epsilon_and_finds_what_the_same_clip_for_all_would_leak():
    rounds, delta = 30, 1e-5
    stated = epsilon(0.1, 1.0, rounds=rounds, delta=delta)
    own = equal_noise(0.5, uniform=0.1, noise=1.0, rounds=rounds, delta=delta)
    assert audit(0.1, 1.0, rounds=rounds, runs=100_000, delta=delta) <= stated
    equal = audit(0.5, own, rounds=rounds, runs=100_000, delta=delta)
    assert 0.3 < equal <= epsilon(0.5, own, rounds=rounds, delta=delta)
    # Without it an agent that is drawn five times as often loses more than was stated.
    assert audit(0.5, 1.0, rounds=rounds, runs=100_000, delta=delta) > stated
