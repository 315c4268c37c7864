"""Problems on which finding the minimiser is hard, small enough for a reference in long double."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from isfed import FederatedData, Huber, LeastSquares, Logistic, Problem, Softmax
from isfed.datasets import standardise

Made = Callable[[], Problem]
HARD: dict[str, Made] = {}


def hard(make: Made) -> Made:
    HARD[make.__name__.replace("_", " ")] = make
    return make


def _problem(x, y, loss, *, num_agents=6, seed=0) -> Problem:
    """The rows in agents of unequal sizes."""
    inner = np.random.default_rng(seed).choice(np.arange(2, len(y) - 2), num_agents - 1, False)
    data = FederatedData(x, y, np.array([0, *np.sort(inner), len(y)]))
    return Problem(data, loss)


def _signs(rng, margins):
    return np.where(margins + rng.logistic(size=len(margins)) > 0.0, 1.0, -1.0)


def _classes(rng, margins, noise=1.0):
    drawn = np.argmax(margins + noise * rng.gumbel(size=margins.shape), axis=1)
    return np.unique(drawn, return_inverse=True)[1].astype(float)  # classes that occur


@hard
def logistic_plain():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((400, 8))
    return _problem(x, _signs(rng, x @ rng.standard_normal(8)), Logistic(1e-3))


@hard
def logistic_with_scales_from_a_millionth_to_a_million():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((500, 7))
    y = _signs(rng, x @ rng.standard_normal(7))
    return _problem(x * 10.0 ** np.linspace(-6, 6, 7), y, Logistic(0.0))


@hard
def logistic_almost_collinear():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((500, 6))
    x[:, 5] = x[:, 0] + x[:, 1] + 1e-6 * rng.standard_normal(500)
    return _problem(x, _signs(rng, x @ rng.standard_normal(6)), Logistic(0.0))


@hard
def logistic_separable_with_a_tiny_ridge():
    rng = np.random.default_rng(4)
    x = rng.standard_normal((300, 5))
    return _problem(x, np.sign(x @ rng.standard_normal(5)), Logistic(1e-7))


@hard
def logistic_of_a_time_stamp():
    rng = np.random.default_rng(5)
    x = np.column_stack([rng.standard_normal((400, 3)), 1.6e9 + 1e5 * rng.random(400)])
    y = _signs(rng, x[:, :3] @ rng.standard_normal(3))
    return _problem(np.column_stack([x, np.ones(400)]), y, Logistic(0.0))


@hard
def softmax_of_three_classes():
    rng = np.random.default_rng(6)
    x = rng.standard_normal((500, 6))
    return _problem(x, _classes(rng, x @ rng.standard_normal((6, 3))), Softmax(1e-3, num_classes=3))


@hard
def softmax_of_twenty_six_classes():
    rng = np.random.default_rng(7)
    x = np.column_stack([rng.standard_normal((600, 2)), np.ones(600)])
    rare = np.linspace(0.0, -4.0, 26)
    y = _classes(rng, x @ rng.standard_normal((3, 26)) + rare)
    return _problem(x, y, Softmax(1e-3, num_classes=int(y.max()) + 1))


def compositions(*, ridge, rows=400, others=4, num_agents=36, num_classes=6) -> Problem:
    """A column of zeros, ten shares that sum to one, an intercept; standardised."""
    rng = np.random.default_rng(8)
    shares = rng.dirichlet(np.full(10, 0.5), rows)
    measured = rng.standard_normal((rows, others)) * np.exp(rng.standard_normal(others))
    raw = np.column_stack([measured, shares, np.zeros(rows)])
    y = _classes(rng, raw @ rng.standard_normal((raw.shape[1], num_classes)), noise=2.0)
    data = _problem(raw, y, LeastSquares(), num_agents=num_agents).data
    data, _ = standardise(data)
    x = np.column_stack([data.features, np.ones(rows)])
    data = FederatedData(x, y, data.offsets)
    return Problem(data, Softmax(ridge, num_classes=int(y.max()) + 1))


@hard
def softmax_of_shares_that_sum_to_one():
    return compositions(ridge=1e-3)


@hard
def softmax_of_shares_without_ridge():
    return compositions(ridge=0.0)


@hard
def huber_far_from_zero():
    rng = np.random.default_rng(9)
    x = np.column_stack([rng.standard_normal((300, 4)), np.ones(300)])
    y = x @ np.array([1.0, -2.0, 3.0, 0.5, 1e6]) + rng.standard_normal(300)
    y[::17] += 1e4
    return _problem(x, y, Huber(ridge=0.0, knee=1.0))


@hard
def least_squares_with_scales_from_a_millionth_to_a_million():
    rng = np.random.default_rng(10)
    x = rng.standard_normal((300, 7))
    y = x @ rng.standard_normal(7) + rng.standard_normal(300)
    return _problem(x * 10.0 ** np.linspace(-6, 6, 7), y, LeastSquares(0.0))


@hard
def least_squares_of_powers():
    rng = np.random.default_rng(11)
    t = np.linspace(0.0, 1.0, 300)
    y = np.sin(12.0 * t) + 0.1 * rng.standard_normal(300)
    return _problem(t[:, None] ** np.arange(12), y, LeastSquares(0.0))


@hard
def logistic_of_agents_of_one_row_and_of_many():
    rng = np.random.default_rng(12)
    x = rng.standard_normal((900, 5)) * [1.0, 10.0, 0.1, 1.0, 1.0]
    y = _signs(rng, x @ rng.standard_normal(5))
    return Problem(FederatedData(x, y, np.array([0, *range(1, 40), 900])), Logistic(1e-5))


@hard
def logistic_of_powers():
    rng = np.random.default_rng(13)
    t = np.linspace(0.0, 1.0, 400)
    return _problem(t[:, None] ** np.arange(10), _signs(rng, 3.0 * np.sin(9.0 * t)), Logistic(0.0))
