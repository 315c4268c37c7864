"""The minimiser of a weighted risk: in closed form where there is one, else by Newton's method."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import linalg
from threadpoolctl import threadpool_limits

from isfed.problems import scaled_risk
from isfed.problems.losses import LeastSquares, LinearLoss, Logistic, Softmax
from isfed.problems.scaled_risk import SAMPLE, Exhausted, NoOptimumError, Risk

RELATIVE = 1e-12  # of the risk: what a minimiser may be above the least one
WELL_CONDITIONED = 1e8  # below it the closed form has the risk to RELATIVE
GRADIENT_TOLERANCE = 1e-13
RISK_TOLERANCE = 1e-11  # of the risk: what may be left to gain
NEWTON_STEPS = 50
CG_STEPS = 200
CG_TOLERANCE = 1e-4
LBFGS_STEPS = 1000

Product = Callable[[np.ndarray], np.ndarray]


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
            return _newton(Risk(loss, x, y, weight))
    raise NoOptimumError(
        f"no minimiser is known for {type(loss).__name__}: give it as Problem(..., optimum=...), "
        "or None to do without"
    )


def _least_squares(loss: LeastSquares, x, y, weight) -> np.ndarray:
    """(R + ridge I)^-1 r, the closed form of the paper's section V-A.

    Where the features' scales differ so much that it loses digits of the risk, QR takes over.
    """
    matrix = scaled_risk.moments(x, weight) + loss.ridge * np.eye(x.shape[1])
    closed = scaled_risk.solve(matrix, x.T @ (weight * y))
    if np.linalg.cond(matrix) < WELL_CONDITIONED:
        return closed
    scale = scaled_risk.scales(matrix)
    below = np.sqrt(loss.ridge) * np.column_stack([np.diag(scale), np.zeros(len(scale))])
    root = scaled_risk.triangle(x, weight, below, scale=scale, beside=y)
    careful = scale * scaled_risk.solve(root[:, :-1], root[:, -1])

    def risk(params: np.ndarray) -> float:
        return float(weight @ (y - x @ params) ** 2 + loss.ridge * (params @ params))

    # The closed form is kept where it is as good: it is the smallest of several minimisers.
    slack = RELATIVE * risk(closed) + 1e-20 * float(weight @ y**2)
    return careful if risk(careful) < risk(closed) - slack else closed


def drift_response(loss: Any, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(R + ridge I)^-1 R: the change of the minimiser for a change of the true model."""
    if not isinstance(loss, LeastSquares):
        raise ValueError(f"a drifting optimum needs LeastSquares, not {type(loss).__name__}")
    second = scaled_risk.moments(x, weight)
    response = scaled_risk.solve(second + loss.ridge * np.eye(len(second)), second)
    return np.ascontiguousarray(response)  # in the order that the kernel is compiled for


def _newton(risk: Risk) -> np.ndarray:
    """SciPy's trust region to the neighbourhood, then Newton steps to the last digits.

    Where that fails, L-BFGS, which needs gradients alone, goes first.
    """
    place = risk.zero()
    slack = 1e-9 * np.linalg.norm(risk.raw_gradient(place)) + GRADIENT_TOLERANCE
    if len(risk.x) > 2 * SAMPLE:
        some = risk.sample()
        start = _approach(some, some.zero(), 1e-2)
        place = (some.params(start) @ risk.whiten).ravel()
    residual, gain = np.inf, np.inf
    for closer in (1e-2, 1e-6, None):  # a neighbourhood that is too wide shows in the gain
        place = _descend(risk, place) if closer is None else _approach(risk, place, closer)
        place, residual, gain = _polish(risk, place)
        small = residual <= slack and gain <= RISK_TOLERANCE * abs(risk.value(place))
        if small or risk.separates(place):
            break
    if risk.separates(place) or not residual <= slack:
        why = " (are the classes separable?)" if isinstance(risk.loss, Logistic | Softmax) else ""
        raise NoOptimumError(
            f"no minimiser of the {type(risk.loss).__name__} risk was found: with "
            f"ridge={risk.loss.ridge} the gradient is still {residual:.1e}{why}; set a larger ridge"
        )
    return risk.params(place).ravel()


def _approach(risk: Risk, start: np.ndarray, closeness: float) -> np.ndarray:
    """Go down until the gradient is that much of what it is at zero."""
    from scipy.optimize import minimize  # takes a while to import, as below

    first = float(np.linalg.norm(risk.gradient(np.zeros(start.size))))
    best = deque([start], maxlen=1)
    try:
        return minimize(
            risk.value, start, jac=risk.gradient, hessp=risk.product, method="trust-ncg",
            options={"gtol": closeness * first + GRADIENT_TOLERANCE, "maxiter": 1000},
            callback=lambda place: best.append(place.copy()),
        ).x  # fmt: skip
    except Exhausted:
        return best[-1]


def _descend(risk: Risk, start: np.ndarray) -> np.ndarray:
    """L-BFGS from the best place known."""
    from scipy.optimize import minimize

    starts = (start, risk.zero(), risk.least_squares())
    return minimize(
        lambda place: (risk.value(place), risk.gradient(place)),
        min(starts, key=lambda place: np.nan_to_num(risk.value(place), nan=np.inf, posinf=np.inf)),
        jac=True, method="L-BFGS-B",
        options={"maxiter": LBFGS_STEPS, "maxfun": 2 * LBFGS_STEPS, "ftol": 0.0, "gtol": 1e-14,
                 "maxcor": 30},
    ).x  # fmt: skip


def _polish(risk: Risk, place: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Newton steps as long as the gradient gets smaller.

    Returns the place, the gradient's length, and what the last step promised to gain.
    """
    residual = float(np.linalg.norm(risk.raw_gradient(place)))
    gain = np.inf if residual > GRADIENT_TOLERANCE else 0.0
    precondition = _preconditioner(risk, place)
    for _ in range(NEWTON_STEPS):
        if residual <= GRADIENT_TOLERANCE or risk.separates(place):
            break
        try:
            step = _newton_step(risk, place, precondition)
        except Exhausted:
            break
        gain = 0.5 * float(risk.gradient(place) @ step)
        smaller = float(np.linalg.norm(risk.raw_gradient(place - step)))
        if not smaller < residual:  # rounding is all that is left
            break
        place, residual = place - step, smaller
    return place, residual, gain


def _preconditioner(risk: Risk, place: np.ndarray) -> Product | None:
    """The inverse of the Hessian's diagonal blocks."""
    try:
        factors = [linalg.cho_factor(block) for block in risk.blocks(place)]
    except (linalg.LinAlgError, ValueError):  # nothing bends in some direction, or it overflows
        return None

    def product(right: np.ndarray) -> np.ndarray:
        # The Hessian keeps to the space without changes that all classes share, and so must we.
        parts = risk.centred(right).reshape(risk.shape)
        solved = np.stack(
            [linalg.cho_solve(f, part) for f, part in zip(factors, parts, strict=True)]
        )
        return risk.centred(solved.ravel())

    return product


def _newton_step(risk: Risk, place: np.ndarray, precondition: Product | None) -> np.ndarray:
    right = risk.gradient(place)
    beside = np.zeros(place.size)
    centred = risk.centred(right)
    if np.linalg.norm(right - centred) >= CG_TOLERANCE * np.linalg.norm(right):
        # Rounding has led out of the space of the minimiser, and the steps below cannot lead back.
        right, beside = centred, place - risk.centred(place)
    return beside + _conjugate_gradients(lambda v: risk.product(place, v), right, precondition)


def _conjugate_gradients(
    matrix: Product, right: np.ndarray, precondition: Product | None
) -> np.ndarray:
    """x with matrix(x) = right, nearly; as SciPy's, but it ends where that one divides by zero."""
    solution, residual = np.zeros(right.size), right.copy()
    tolerance = CG_TOLERANCE * np.linalg.norm(right)
    direction, before = residual, 0.0
    for step in range(min(10 * right.size, CG_STEPS)):
        if np.linalg.norm(residual) < tolerance:
            break
        turned = residual if precondition is None else precondition(residual)
        now = np.dot(residual, turned)
        direction = turned.copy() if step == 0 else turned + now / before * direction
        image = matrix(direction)
        bend = np.dot(direction, image)
        if not (now > 0.0 and bend > 0.0):
            break
        solution += now / bend * direction
        residual -= now / bend * image
        before = now
    return solution
