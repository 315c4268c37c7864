"""What a round varies under a correction: mini-batches, and what memories do not know.

The news of agent k is v_k = g_k - c_k, and E[v_k | past] is what its memory does not know:

- how far gradients have wandered, H_k (w - w^o), where w is around w^o by the noise of the rounds.
  This is alike for agents that are alike, so that a draw along an order of them removes some of it.
- what n_k turns of noise R_k leave unknown, R_k / n_k.
- an agent that was never heard counts as the mean of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from isfed.problems import Problem
from isfed.sampling.designs import Deville, Spread, inclusion_probabilities
from isfed.sampling.designs.spread import order_alike, projection
from isfed.sampling.designs.variance import total_variance

WANDERINGS = 4  # directions in which the model is moved
REACH = 1e-4  # how far, as a part of its length, to see the curvature


@dataclass(frozen=True, eq=False)
class Memories:
    """What is not known of the agents' gradients when they are drawn.

    Args:
        noise: (K,) R_k, the variance of a turn by its mini-batches.
        wandered: (D, K, M) H_k (w - w^o), for some w.
        unlearned: (K,) the mean square of what too few turns have left unknown.
    """

    noise: np.ndarray
    wandered: np.ndarray
    unlearned: np.ndarray

    @property
    def news(self) -> np.ndarray:
        """(K,) sqrt(E|v_k|^2), to which the best probabilities are proportional."""
        wandered = (self.wandered**2).sum(axis=2).mean(axis=0)
        return np.sqrt(self.noise + wandered + self.unlearned)

    def inclusion(self, num_active: int, floor: float) -> np.ndarray:
        """(K,) L p_k by the length of the news."""
        return inclusion_probabilities(self.news, num_active, floor=floor)

    def variance(self, inclusion: np.ndarray, *, spread: bool = False) -> float:
        """Of the gradient estimate of a round; a draw along a spread, or in the agents' order."""
        count, orders = inclusion.size, [np.arange(inclusion.size)] * len(self.wandered)
        if spread:
            orders = self._orders(inclusion)
        wandered = [
            total_variance(Deville(), inclusion[order], part[order] / count).sum()
            for part, order in zip(self.wandered, orders, strict=True)
        ]
        apart = self.noise / inclusion + self.unlearned * (1.0 / inclusion - 1.0)
        return float(np.mean(wandered)) + float(apart.sum()) / count**2

    def _orders(self, inclusion: np.ndarray) -> list[np.ndarray]:
        """The order for every w, made of sketches of noisy news at the w before it."""
        rng, sketch = np.random.default_rng(1), Spread().sketch
        onto = projection(self.wandered.shape[2], sketch)
        width = onto.shape[1]
        unknown = np.sqrt((self.noise + self.unlearned) / width)[:, None]
        sketches = [
            (part @ onto + unknown * rng.standard_normal((inclusion.size, width)))
            / inclusion[:, None]
            for part in np.roll(self.wandered, 1, axis=0)
        ]
        return [order_alike(points) for points in sketches]


def memories(
    problem: Problem, model: np.ndarray, means: np.ndarray, noise: np.ndarray, *,
    step_size: float, num_active: int, rounds: int | None,
) -> Memories:  # fmt: skip
    """What memories will not know at a model, after some rounds (None: after very many).

    Args:
        means: (K, M) the agents' gradients there.
        noise: (K,) the variance that mini-batches give a turn.
    """
    count, chance = problem.num_agents, num_active / problem.num_agents
    level = float(noise.sum()) / (count * num_active)  # of a round, with equal probabilities
    unlearned = np.zeros(count)
    if rounds is not None:
        turns = rounds * chance
        unheard = (1.0 - chance) ** rounds
        apart = ((means - means.mean(axis=0)) ** 2).sum(axis=1)
        unlearned = (1.0 - unheard) * noise / max(turns, 1.0) + unheard * apart
    return Memories(noise, _wandered(problem, model, means, step_size, level), unlearned)


def _wandered(
    problem: Problem, model: np.ndarray, means: np.ndarray, step_size: float, level: float
) -> np.ndarray:
    """(D, K, M) H_k d for d around w^o as far as noise keeps a model from it.

    The excess risk 1/2 d' H d is mu / 4 level in the mean, and d is taken to be as long in every
    direction, as it is where the noise has the covariance of the curvature.
    """
    if not level > 0.0:
        return np.zeros((1, *means.shape))
    directions = np.random.default_rng(0).standard_normal((WANDERINGS, model.size))
    reach = REACH * (1.0 + float(np.linalg.norm(model))) / math.sqrt(model.size)
    bent = [(risk_gradients(problem, model + reach * d) - means) / reach for d in directions]
    curvature = np.mean([abs(d @ b.mean(axis=0)) for d, b in zip(directions, bent, strict=True)])
    if not curvature > 0.0:
        return np.zeros((1, *means.shape))
    return math.sqrt(0.5 * step_size * level / float(curvature)) * np.array(bent)


def risk_gradients(problem: Problem, params: np.ndarray) -> np.ndarray:
    """(K, M) the weighted gradients of the agents' risks, at one model or at one for each."""
    models = np.broadcast_to(params, (problem.num_agents, problem.num_params))
    found = np.empty((problem.num_agents, problem.num_params))
    for agent in range(problem.num_agents):
        x, y = problem.data.agent(agent)
        found[agent] = problem.loss.gradient(models[agent], x, y, np.ones(len(y)))[0]
    return problem.data.agent_weights[:, None] * found
