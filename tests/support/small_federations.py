"""Small problems for the tests of methods, and the linear algebra that their limits obey."""

from typing import Any

import numpy as np

from isfed import FederatedData, LeastSquares, Problem

SIZES = (4, 9, 3, 6)


def regression(
    *, sizes: tuple[int, ...] = SIZES, local_steps: Any = 2, batch_size: Any = 2, seed: int = 21
) -> Problem:
    """Least squares with agents of different sizes that disagree with each other."""
    rng = np.random.default_rng(seed)
    agents = []
    for n in sizes:
        x = rng.standard_normal((n, 3))
        agents.append((x, x @ rng.standard_normal(3) + 0.1 * rng.standard_normal(n)))
    return Problem(
        FederatedData.from_agents(agents),
        LeastSquares(0.01),
        local_steps=local_steps,
        batch_size=batch_size,
    )


def identical_agents(*, count: int = 4, local_steps: Any = 2) -> Problem:
    """All agents hold the same data."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((6, 3))
    y = x @ rng.standard_normal(3) + 0.1 * rng.standard_normal(6)
    data = FederatedData.from_agents([(x, y)] * count)
    return Problem(data, LeastSquares(0.01), local_steps=local_steps, batch_size=2)


def quadratics(problem: Problem) -> list[tuple[np.ndarray, np.ndarray]]:
    """For every agent H_k and b_k with grad P_k(w) = H_k w - b_k."""
    found = []
    for agent in range(problem.num_agents):
        x, y = problem.data.agent(agent)
        curvature = 2.0 * (x.T @ x / len(y) + problem.loss.ridge * np.eye(x.shape[1]))
        found.append((curvature, 2.0 * x.T @ y / len(y)))
    return found


def after_steps(
    curvature: np.ndarray, pull: np.ndarray, *, step_size: float, steps: int, prox: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """A and c with x_steps = A w + c, for steps x - step_size (H x - b + prox (x - w)) from w."""
    size = len(pull)
    model, constant = np.eye(size), np.zeros(size)
    for _ in range(steps):
        model, constant = (
            model - step_size * (curvature @ model + prox * (model - np.eye(size))),
            constant - step_size * (curvature @ constant - pull + prox * constant),
        )
    return model, constant


def fixed_point(maps: list[tuple[np.ndarray, np.ndarray]], weights: np.ndarray) -> np.ndarray:
    """The w with w = sum_k weight_k (A_k w + c_k)."""
    model = np.einsum("k,kij->ij", weights, np.array([a for a, _ in maps]))
    constant = np.einsum("k,ki->i", weights, np.array([b for _, b in maps]))
    return np.linalg.solve(np.eye(len(constant)) - model, constant)
