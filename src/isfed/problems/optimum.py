"""The minimiser of a weighted risk: in closed form where there is one, else by Newton's method."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg
from threadpoolctl import threadpool_limits

from isfed.problems.losses import LeastSquares, LinearLoss
from isfed.problems.newton_solver import newton
from isfed.problems.scaled_risk import NoOptimumError, Risk, moments, scales, triangle

__all__ = ["NoOptimumError", "drift_response", "minimise"]

RELATIVE = 1e-12  # of the risk: what a minimiser may be above the least one
WELL_CONDITIONED = 1e8  # below it the closed form has the risk to RELATIVE


def minimise(loss: Any, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """argmin of sum_n weight_n loss(params; x_n, y_n), the weights summing to 1.

    A `NoOptimumError` says why there is none, or why it was not found.
    """
    if isinstance(loss, LeastSquares):
        return _least_squares(loss, x, y, weight)
    if isinstance(loss, LinearLoss):
        # Many products that the memory limits: a second core brings little, and threads that wait
        # for each other made it 20 times slower on a machine that was busy.
        with threadpool_limits(limits=1, user_api="blas"):
            return newton(Risk(loss, x, y, weight))
    raise NoOptimumError(
        f"no minimiser is known for {type(loss).__name__}: give it as Problem(..., optimum=...), "
        "or None to do without"
    )


def _solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The solution, or the smallest least-squares one if the matrix is singular."""
    solution = linalg.lstsq(matrix, right)
    assert solution is not None
    return solution[0]


def _least_squares(loss: LeastSquares, x, y, weight) -> np.ndarray:
    """(R + ridge I)^-1 r, the closed form of the paper's section V-A.

    Where the features' scales differ so much that it loses digits of the risk, QR takes over.
    """
    matrix = moments(x, weight) + loss.ridge * np.eye(x.shape[1])
    closed = _solve(matrix, x.T @ (weight * y))
    if np.linalg.cond(matrix) < WELL_CONDITIONED:
        return closed
    scale = scales(matrix)
    below = np.sqrt(loss.ridge) * np.column_stack([np.diag(scale), np.zeros(len(scale))])
    root = triangle(x, weight, below, scale=scale, beside=y)
    careful = scale * _solve(root[:, :-1], root[:, -1])

    def risk(params: np.ndarray) -> float:
        return float(weight @ (y - x @ params) ** 2 + loss.ridge * (params @ params))

    # The closed form is kept where it is as good: it is the smallest of several minimisers.
    slack = RELATIVE * risk(closed) + 1e-20 * float(weight @ y**2)
    return careful if risk(careful) < risk(closed) - slack else closed


def drift_response(loss: Any, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(R + ridge I)^-1 R: the change of the minimiser for a change of the true model."""
    if not isinstance(loss, LeastSquares):
        raise ValueError(f"a drifting optimum needs LeastSquares, not {type(loss).__name__}")
    second = moments(x, weight)
    response = _solve(second + loss.ridge * np.eye(len(second)), second)
    return np.ascontiguousarray(response)  # in the order that the kernel is compiled for
