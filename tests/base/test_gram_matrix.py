"""Sums of x x^T over many rows, in pieces, against the sum written out."""

import numpy as np
import pytest

from isfed import FederatedData, LeastSquares, Problem
from isfed.base import gram_matrix
from isfed.theory import diagnose


@pytest.mark.parametrize("tall", [0, 10**9])
def test_pieces_add_up(tall, monkeypatch):
    monkeypatch.setattr(gram_matrix, "TALL", tall)
    monkeypatch.setattr(gram_matrix, "PIECE", 7)
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((30, 4)), rng.random(30)
    literal = np.array([w * np.outer(row, row) for row, w in zip(x, weight, strict=True)])
    np.testing.assert_allclose(
        gram_matrix.weighted_gram(x, weight), literal.sum(axis=0), rtol=1e-12
    )
    offsets = np.array([0, 3, 4, 30])
    each = [literal[:3].sum(axis=0), literal[3], literal[4:].sum(axis=0)]
    np.testing.assert_allclose(gram_matrix.grams_of(x, weight, offsets), each, rtol=1e-12)


@pytest.mark.parametrize("scales", [(1.0, 2.0, 0.5, 1.0, 3.0), (1.0, 1e3, 1e-6, 1.0, 1e5)])
def test_a_diagnosis_is_the_same_in_pieces(scales, monkeypatch):
    """The gain has H^-1 in it, hence an error of its condition number times that of rounding."""
    rng = np.random.default_rng(1)
    agents = []
    for n in (20, 35, 50, 15):
        x = rng.standard_normal((n, 5)) * np.array(scales)  # QR takes over for the second
        agents.append((x, x.sum(axis=1) + n * rng.standard_normal(n)))
    data, loss = FederatedData.from_agents(agents), LeastSquares(1e-3)

    def found():
        problem = Problem(data, loss, batch_size=4)
        options = diagnose(problem, num_active=2).options.values()
        limits = np.array([(o.variance, o.step_limit) for o in options])
        return limits, np.array([o.gain_db for o in options]), problem.risk(problem.optimum)

    limits, gains, risk = found()
    hessian = gram_matrix.weighted_gram(data.features, data.row_weights()) + loss.ridge * np.eye(5)
    of_ratio = 2.0 * np.linalg.cond(hessian) * np.finfo(float).eps  # of two errors, each with H^-1
    monkeypatch.setattr(gram_matrix, "TALL", 0)
    monkeypatch.setattr(gram_matrix, "PIECE", 16)
    monkeypatch.setattr("isfed.theory.round_curvature.TALL", 0)
    in_pieces, gains_in_pieces, again = found()
    np.testing.assert_allclose(in_pieces, limits, rtol=1e-8)
    decibels = 10.0 / np.log(10.0) * of_ratio
    np.testing.assert_allclose(gains_in_pieces, gains, rtol=1e-8, atol=decibels)
    assert again == pytest.approx(risk, rel=1e-12)
