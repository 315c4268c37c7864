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
SAMPLE = 10_000  # rows: of more, a sample gives the start and the preconditioner


class NoOptimumError(ValueError):
    """The minimiser w^o of a problem is not known; the message says why."""


def minimise(loss: Any, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """argmin of sum_n weight_n loss(params; x_n, y_n), the weights summing to 1."""
    if isinstance(loss, LeastSquares):
        return _least_squares(loss, x, y, weight)
    if isinstance(loss, LinearLoss):
        # Many products that the memory limits: a second core brings little, and threads that wait
        # for each other made it 20 times slower on a machine that was busy.
        with threadpool_limits(limits=1, user_api="blas"):
            return _newton(_Risk(loss, x, y, weight))
    raise NoOptimumError(
        f"no minimiser is known for {type(loss).__name__}: give it as Problem(..., optimum=...), "
        "or None to do without"
    )


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
        self.forth = vectors[:, seen] * np.sqrt(bound[seen])
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

    def sample(self) -> _Risk:
        """The same on some of the rows; every so many, because neighbours are of one agent."""
        rows = slice(None, None, -(-len(self.x) // SAMPLE))
        weight = self.weight[rows, 0] / self.weight[rows].sum()
        return _Risk(self.loss, np.ascontiguousarray(self.x[rows]), self.y[rows], weight)

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

    def blocks(self, place: np.ndarray) -> list[np.ndarray]:
        """The Hessian's diagonal blocks, one for each row of the parameters, of a sample."""
        rows = slice(None, None, max(1, len(self.x) // (2 * SAMPLE)))
        seen = self.x[rows] @ self.back
        share = self.weight[rows] / self.weight[rows].sum()
        ridge = 2.0 * self.loss.ridge * self.back.T @ self.back
        found = []
        for unit in np.eye(self.shape[0]):
            change = np.broadcast_to(unit, (len(seen), self.shape[0]))
            bends = self.loss.bends(self.margins(place)[rows], self.y[rows], change) @ unit
            found.append((seen * (share[:, 0] * bends)[:, None]).T @ seen + ridge)
        return found

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
    place = np.zeros(risk.shape[0] * risk.shape[1])
    slack = 1e-9 * np.linalg.norm(risk.raw_gradient(place)) + GRADIENT_TOLERANCE
    if len(risk.x) > 2 * SAMPLE:
        some = risk.sample()
        start = _approach(some, np.zeros(some.shape[0] * some.shape[1]), 1e-2)
        place = (some.params(start) @ risk.forth).ravel()
    residual = np.inf
    for closeness in (1e-2, 1e-6):  # a neighbourhood that is too wide shows in the residual
        place = _approach(risk, place, closeness)
        place, residual = _polish(risk, place)
        if residual <= slack or risk.separates(place):
            break
    if risk.separates(place) or not residual <= slack:
        raise NoOptimumError(
            f"no minimiser of the {type(risk.loss).__name__} risk was found: with "
            f"ridge={risk.loss.ridge} the gradient is still {residual:.1e} "
            "(are the classes separable?); set a larger ridge"
        )
    return risk.params(place).ravel()


def _approach(risk: _Risk, start: np.ndarray, closeness: float) -> np.ndarray:
    """Go down until the gradient is that much of what it is at zero."""
    first = float(np.linalg.norm(risk.gradient(np.zeros(start.size))))
    return scipy_optimize.minimize(
        risk.value, start, jac=risk.gradient, hessp=risk.product, method="trust-ncg",
        options={"gtol": closeness * first + GRADIENT_TOLERANCE, "maxiter": 1000},
    ).x  # fmt: skip


def _polish(risk: _Risk, place: np.ndarray) -> tuple[np.ndarray, float]:
    """Newton steps as long as the gradient gets smaller; the place and the gradient's length."""
    residual = float(np.linalg.norm(risk.raw_gradient(place)))
    nearly_inverse = _preconditioner(risk, place)
    for _ in range(NEWTON_STEPS):
        if residual <= GRADIENT_TOLERANCE or risk.separates(place):
            break
        step = _newton_step(risk, place, nearly_inverse)
        smaller = float(np.linalg.norm(risk.raw_gradient(place - step)))
        if not smaller < residual:  # rounding is all that is left
            break
        place, residual = place - step, smaller
    return place, residual


def _operator(size: int, product: Any) -> LinearOperator:
    operator: Any = LinearOperator  # its own types do not know that `matvec` is an argument
    return operator((size, size), matvec=product, dtype=np.float64)


def _preconditioner(risk: _Risk, place: np.ndarray) -> LinearOperator | None:
    """The inverse of the Hessian's diagonal blocks."""
    try:
        factors = [linalg.cho_factor(block) for block in risk.blocks(place)]
    except linalg.LinAlgError:  # no ridge, and nothing bends in some direction
        return None

    def product(right: np.ndarray) -> np.ndarray:
        parts = right.reshape(risk.shape)
        # The same change of all classes changes no probability. The Hessian keeps to the space
        # without such changes, and so must we: outside it is almost singular.
        common = risk.shape[0] > 1
        parts = parts - common * parts.mean(axis=0)
        solved = np.stack(
            [linalg.cho_solve(f, part) for f, part in zip(factors, parts, strict=True)]
        )
        return (solved - common * solved.mean(axis=0)).ravel()

    return _operator(place.size, product)


def _newton_step(
    risk: _Risk, place: np.ndarray, nearly_inverse: LinearOperator | None
) -> np.ndarray:
    hessian = _operator(place.size, lambda v: risk.product(place, v))
    right = risk.gradient(place)
    return cg(hessian, right, rtol=1e-4, maxiter=10 * place.size, M=nearly_inverse)[0]
