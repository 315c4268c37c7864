"""The minimiser of a weighted risk: in closed form where there is one, else by SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg
from scipy import optimize as scipy_optimize
from scipy.special import expit

from isfed.problems.losses import LeastSquares, Logistic

GRADIENT_TOLERANCE = 1e-13


def minimise(loss: Any, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """argmin of sum_n weight_n loss(params; x_n, y_n), the weights summing to 1."""
    if isinstance(loss, LeastSquares):
        return _least_squares(loss, x, y, weight)
    if isinstance(loss, Logistic):
        return _logistic(loss, x, y, weight)
    raise ValueError(f"no minimiser is known for {type(loss).__name__}; pass optimum=... yourself")


def _solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The solution, or the smallest least-squares one if the matrix is singular."""
    solution = linalg.lstsq(matrix, right)
    assert solution is not None
    return solution[0]


def _moments(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """R = sum_n weight_n x_n x_n^T."""
    return (x * weight[:, None]).T @ x


def _least_squares(loss: LeastSquares, x, y, weight) -> np.ndarray:
    """(R + ridge I)^-1 r, the closed form of the paper's section V-A."""
    matrix = _moments(x, weight) + loss.ridge * np.eye(x.shape[1])
    return _solve(matrix, x.T @ (weight * y))


def drift_response(loss: Any, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(R + ridge I)^-1 R: the change of the minimiser for a change of the true model."""
    if not isinstance(loss, LeastSquares):
        raise ValueError(f"a drifting optimum needs LeastSquares, not {type(loss).__name__}")
    moments = _moments(x, weight)
    response = _solve(moments + loss.ridge * np.eye(len(moments)), moments)
    return np.ascontiguousarray(response)  # in the order that the kernel is compiled for


def _logistic(loss: Logistic, x, y, weight) -> np.ndarray:
    def value(params):
        return weight @ np.logaddexp(0.0, -y * (x @ params)) + loss.ridge * params @ params

    def gradient(params):
        return x.T @ (-weight * y * expit(-y * (x @ params))) + 2.0 * loss.ridge * params

    def hessian(params):
        share = expit(x @ params)
        return _moments(x, weight * share * (1.0 - share)) + 2.0 * loss.ridge * np.eye(params.size)

    start = np.zeros(x.shape[1])
    result = scipy_optimize.minimize(
        value, start, jac=gradient, hess=hessian, method="trust-exact", options={"gtol": 1e-8}
    )
    params = result.x
    for _ in range(50):  # Newton steps to the last digits, where SciPy's stopping rule gives up
        residual = gradient(params)
        if np.linalg.norm(residual) <= GRADIENT_TOLERANCE:
            break
        params = params - _solve(hessian(params), residual)
    margins = y * (x @ params)
    # Where every example is on its right side the risk only falls for ever, ever more slowly.
    separated = loss.ridge == 0.0 and margins.min() >= 0.0 and margins.max() > 0.0
    if separated or not np.linalg.norm(gradient(params)) <= 1e-6:
        raise ValueError(
            "the logistic risk has no minimiser (separable classes and ridge=0?); set a ridge > 0"
        )
    return params
