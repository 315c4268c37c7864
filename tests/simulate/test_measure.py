"""Measurements along a run: at the right rounds, the same in both engines."""

from __future__ import annotations

import numpy as np
import pytest

from isfed import ISFedAvg, Regression, simulate


class Norms:
    """The first parameter and the squared length of the model."""

    every: int = 7
    names: tuple[str, ...] = ("first", "square")

    def __call__(self, params: np.ndarray) -> np.ndarray:
        return np.stack([params[:, 0], (params**2).sum(axis=1)], axis=1)


@pytest.fixture
def problem():
    return Regression(num_agents=8, num_examples=6, batch_size=(1, 3)).make(seed=1)


def test_engines_measure_the_same(problem):
    algorithm = ISFedAvg(step_size=0.01, num_active=3)
    histories = [
        simulate(
            problem, algorithm, rounds=30, repetitions=2, seed=4, engine=engine, measure=Norms()
        )
        for engine in ("kernel", "objects")
    ]
    for history in histories:
        assert history.measured_rounds.tolist() == [0, 7, 14, 21, 28, 30]
        assert np.all(history.measured["first"][:, 0] == 0.0)
        assert np.isfinite(history.measured["square"]).all()
    for name in Norms.names:
        assert np.array_equal(histories[0].measured[name], histories[1].measured[name])


def test_measuring_changes_nothing(problem):
    algorithm = ISFedAvg(step_size=0.01, num_active=3)
    with_it = simulate(problem, algorithm, rounds=25, measure=Norms())
    without = simulate(problem, algorithm, rounds=25)
    assert np.array_equal(with_it.msd, without.msd)
    last = simulate(problem, algorithm, rounds=21)
    assert with_it.measured["first"][0, 3] == last.params[0, 0]


def test_an_impossible_interval(problem):
    measure = Norms()
    measure.every = 0
    with pytest.raises(ValueError, match="every=0"):
        simulate(problem, ISFedAvg(step_size=0.01, num_active=3), rounds=5, measure=measure)
