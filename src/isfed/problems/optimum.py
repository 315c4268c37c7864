"""The minimiser of a weighted risk: in closed form where there is one, else by SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg
from scipy import optimize as scipy_optimize
from scipy.sparse.linalg import LinearOperator, cg
from threadpoolctl import threadpool_limits

from isfed.problems.losses import LeastSquares, LinearLoss, Logistic, Softmax

GRADIENT_TOLERANCE = 1e-13
NEWTON_STEPS = 50
LARGE_PRODUCT = 50_000_000  # multiplications; below this a second core costs more than it brings


def minimise(loss: Any, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """argmin of sum_n weight_n loss(params; x_n, y_n), the weights summing to 1."""
    if isinstance(loss, LeastSquares):
        return _least_squares(loss, x, y, weight)
    if isinstance(loss, LinearLoss):
        small = x.size * loss.compiled.num_rows < LARGE_PRODUCT
        # Hundreds of small products: threads that wait for each other made it 20 times slower on a
        # machine that was busy.
        with threadpool_limits(limits=1 if small else None, user_api="blas"):
            return _newton(_Risk(loss, x, y, weight))
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


class _Risk:
    """The risk of a generalised linear loss as a function of whitened parameters.

    The Hessian is at most bend R + 2 ridge I for each row of the parameters; in the coordinates
    `params = place @ back.T` that bound is the identity, so that conjugate gradients need few steps
    whatever the scale of the features. Directions in which nothing varies are left at zero.
    """

    def __init__(self, loss: LinearLoss, x, y, weight) -> None:
        self.loss, self.x, self.y, self.weight = loss, x, y, weight[:, None]
        spectrum, vectors = linalg.eigh(_moments(x, weight))
        bound = loss.bend * spectrum + 2.0 * loss.ridge
        seen = bound > 1e-14 * bound.max()
        self.back = vectors[:, seen] / np.sqrt(bound[seen])  # (M, directions)
        self.shape = (loss.compiled.num_rows, self.back.shape[1])
        self._key, self._margins = b"", np.empty(0)

    def params(self, place: np.ndarray) -> np.ndarray:
        """(rows, M)."""
        return place.reshape(self.shape) @ self.back.T

    def margins(self, place: np.ndarray) -> np.ndarray:
        """(N, rows); kept, because a solver asks for many products at one place."""
        key = place.tobytes()
        if key != self._key:
            self._key, self._margins = key, self.x @ self.params(place).T
        return self._margins

    def value(self, place: np.ndarray) -> float:
        losses = self.loss.of_margins(self.margins(place), self.y)
        return self.weight[:, 0] @ losses + self.loss.ridge * np.sum(self.params(place) ** 2)

    def raw_gradient(self, place: np.ndarray) -> np.ndarray:
        """The gradient in the parameters, (rows, M)."""
        slopes = self.weight * self.loss.slopes(self.margins(place), self.y)
        return slopes.T @ self.x + 2.0 * self.loss.ridge * self.params(place)

    def gradient(self, place: np.ndarray) -> np.ndarray:
        return (self.raw_gradient(place) @ self.back).ravel()

    def product(self, place: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """The Hessian times a direction."""
        change = self.params(direction)
        bends = self.loss.bends(self.margins(place), self.y, self.x @ change.T)
        raw = (self.weight * bends).T @ self.x + 2.0 * self.loss.ridge * change
        return (raw @ self.back).ravel()

    def separates(self, place: np.ndarray) -> bool:
        """Whether every example is on its side: then larger parameters are always better."""
        margins = self.margins(place)
        if isinstance(self.loss, Logistic):
            lead = self.y * margins[:, 0]
        elif isinstance(self.loss, Softmax):
            own = np.arange(self.shape[0]) == self.y[:, None]
            lead = margins[own] - np.where(own, -np.inf, margins).max(axis=1)
        else:
            return False
        return bool(self.loss.ridge == 0.0 and lead.min() >= 0.0 and lead.max() > 0.0)


def _newton(risk: _Risk) -> np.ndarray:
    """SciPy's trust region to the neighbourhood, then Newton steps to the last digits."""
    start = np.zeros(risk.shape[0] * risk.shape[1])
    slack = 1e-9 * np.linalg.norm(risk.raw_gradient(start)) + GRADIENT_TOLERANCE
    gtol = 1e-6 * float(np.linalg.norm(risk.gradient(start))) + GRADIENT_TOLERANCE
    reached = scipy_optimize.minimize(
        risk.value, start, jac=risk.gradient, hessp=risk.product, method="trust-ncg",
        options={"gtol": gtol, "maxiter": 1000},
    )  # fmt: skip
    place, residual = reached.x, np.linalg.norm(risk.raw_gradient(reached.x))
    for _ in range(NEWTON_STEPS):
        if residual <= GRADIENT_TOLERANCE or risk.separates(place):
            break
        step = _newton_step(risk, place)
        smaller = np.linalg.norm(risk.raw_gradient(place - step))
        if not smaller < residual:  # rounding is all that is left
            break
        place, residual = place - step, smaller
    if risk.separates(place) or not residual <= slack:
        raise ValueError(
            f"no minimiser of the {type(risk.loss).__name__} risk was found: with "
            f"ridge={risk.loss.ridge} the gradient is still {residual:.1e} "
            "(are the classes separable?); set a larger ridge"
        )
    return risk.params(place).ravel()


def _newton_step(risk: _Risk, place: np.ndarray) -> np.ndarray:
    operator: Any = LinearOperator  # its own types do not know that `matvec` is an argument
    hessian = operator(
        (place.size, place.size), matvec=lambda v: risk.product(place, v), dtype=np.float64
    )
    return cg(hessian, risk.gradient(place), rtol=1e-9, maxiter=10 * place.size)[0]
