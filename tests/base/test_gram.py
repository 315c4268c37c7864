"""Sums of x x^T over many rows, in pieces, against the sum written out."""

import numpy as np
import pytest

from isfed import FederatedData, LeastSquares, Problem
from isfed.base import gram
from isfed.theory import diagnose


@pytest.mark.parametrize("tall", [0, 10**9])
def test_pieces_add_up(tall, monkeypatch):
    monkeypatch.setattr(gram, "TALL", tall)
    monkeypatch.setattr(gram, "PIECE", 7)
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((30, 4)), rng.random(30)
    literal = np.array([w * np.outer(row, row) for row, w in zip(x, weight, strict=True)])
    np.testing.assert_allclose(gram.weighted_gram(x, weight), literal.sum(axis=0), rtol=1e-12)
    offsets = np.array([0, 3, 4, 30])
    each = [literal[:3].sum(axis=0), literal[3], literal[4:].sum(axis=0)]
    np.testing.assert_allclose(gram.grams_of(x, weight, offsets), each, rtol=1e-12)


def test_a_diagnosis_is_the_same_in_pieces(monkeypatch):
    rng = np.random.default_rng(1)
    agents = []
    for n in (20, 35, 50, 15):
        x = rng.standard_normal((n, 5)) * np.array([1.0, 1e3, 1e-6, 1.0, 1e5])  # QR takes over
        agents.append((x, x.sum(axis=1) + n * rng.standard_normal(n)))

    def found():
        problem = Problem(FederatedData.from_agents(agents), LeastSquares(1e-3), batch_size=4)
        result = diagnose(problem, num_active=2)
        limits = [(o.variance, o.gain_db, o.step_limit) for o in result.options.values()]
        return np.array(limits), problem.risk(problem.optimum)

    limits, risk = found()
    monkeypatch.setattr(gram, "TALL", 0)
    monkeypatch.setattr(gram, "PIECE", 16)
    monkeypatch.setattr("isfed.theory.curvature.TALL", 0)
    in_pieces, again = found()
    np.testing.assert_allclose(in_pieces, limits, rtol=1e-8)
    assert again == pytest.approx(risk, rel=1e-12)
