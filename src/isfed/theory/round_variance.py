"""The exact variance of a round's gradient estimate at a model, by its two sources.

The estimate is that of eq. (14) of the paper: every local step takes its gradients at the model of
the round, the L agents are weighted by 1 / (K p_k), their examples by 1 / (N_k p_n).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isfed.methods import ISFedAvg
from isfed.problems import Problem
from isfed.sampling.designs import WithReplacement
from isfed.sampling.designs.exact_variance import total_variance
from isfed.theory.probabilities import Choices, check_model, choices_at, gradients_of_agents


@dataclass(frozen=True, eq=False)
class Variance:
    """The variance of a gradient estimate, component by component, by what causes it.

    Args:
        agents: (M,) the part that comes from hearing only L of K agents.
        examples: (M,) the part that comes from using only B_k of N_k examples.
        mean: (M,) what is estimated: the gradient, unless the 1/E_k is left out.
    """

    agents: np.ndarray
    examples: np.ndarray
    mean: np.ndarray

    @property
    def total(self) -> float:
        """E|s_i|^2."""
        return float(self.agents.sum() + self.examples.sum())

    @property
    def agents_share(self) -> float:
        """The share of `total` that comes from choosing agents."""
        return float(self.agents.sum()) / self.total if self.total > 0.0 else 0.0


def gradient_variance(
    problem: Problem,
    algorithm: ISFedAvg,
    *,
    params: np.ndarray | None = None,
    choices: Choices | None = None,
    rotate: np.ndarray | None = None,
) -> Variance:
    """The variance of eq. (14) at a model, by Appendix A of the paper.

    Args:
        problem: what is learned.
        algorithm: whose rounds make the estimate.
        params: (M,) the model; w^o unless given.
        choices: the inclusion probabilities; those of `choices_at` unless given.
        rotate: (M, n) if given, the components are those of `gradient @ rotate`.

    >>> from isfed import EQUAL, DynamicFedAvg
    >>> variance = gradient_variance(EQUAL.make(), DynamicFedAvg(step_size=0.01, num_active=6))
    >>> 0.0 < variance.agents_share < 1.0
    True
    """
    model = check_model(problem, params)
    chosen = choices_at(problem, algorithm, model) if choices is None else choices
    return gradient_variances(problem, [(algorithm, chosen)], params=model, rotate=rotate)[0]


def gradient_variances(
    problem: Problem,
    methods: Sequence[tuple[ISFedAvg, Choices]],
    *,
    params: np.ndarray,
    rotate: np.ndarray | None = None,
) -> list[Variance]:
    """`gradient_variance` of several algorithms with their probabilities, in one pass."""
    found = gradients_of_agents(problem, params)
    turned = found if rotate is None else (gradients @ rotate for gradients in found)
    return variances_of(problem, methods, turned)


def curvature_variances(
    problem: Problem, methods: Sequence[tuple[ISFedAvg, Choices]], *, rotate: np.ndarray
) -> list[Variance]:
    """How much the variance along column i grows with the squared distance along column j.

    For losses of one margin and constant curvature, as least squares: the gradients of examples
    then move by x x^T times that distance. Fields of the result have the shape (n, n).

    Args:
        problem: what is learned.
        methods: the algorithms with their probabilities, which stay as they are.
        rotate: (M, n) orthonormal columns.
    """
    size, ridge = rotate.shape[1], 2.0 * problem.loss.ridge * np.eye(rotate.shape[1])

    def products() -> Iterator[np.ndarray]:
        for agent in range(problem.num_agents):
            x, y = problem.data.agent(agent)
            turned = x @ rotate
            one = np.ones((len(y), 1))
            bends = problem.loss.bends(np.zeros_like(one), y, one)[:, :, None]
            yield (bends * turned[:, :, None] * turned[:, None, :] + ridge).reshape(len(y), -1)

    return [
        Variance(*(part.reshape(size, size) for part in vars(found).values()))
        for found in variances_of(problem, methods, products())
    ]


def variances_of(
    problem: Problem,
    methods: Sequence[tuple[ISFedAvg, Choices]],
    gradients: Iterable[np.ndarray],
) -> list[Variance]:
    """The same of any quantities of the examples, (N_k, n), agent after agent."""
    num_agents = problem.num_agents
    means: Any = None
    # Algorithms that draw examples alike share what these contribute.
    examples = [(algorithm.example_design, chosen.examples) for algorithm, chosen in methods]
    which = [
        next(
            j for j, (design, chances) in enumerate(examples)
            if design == drawn and np.array_equal(chances, shown)
        )
        for drawn, shown in examples
    ]  # fmt: skip
    spreads: dict[int, np.ndarray] = {}
    for agent, turned in enumerate(gradients):
        if means is None:
            means = np.empty((num_agents, turned.shape[1]))
            spreads = {first: np.empty_like(means) for first in which}
        means[agent] = turned.mean(axis=0)
        each = turned / len(turned)
        for first, spread in spreads.items():
            algorithm, chosen = methods[first]
            inclusion = chosen.of_agent(problem, agent)
            spread[agent] = total_variance(algorithm.example_design, inclusion, each)
    return [
        _of_round(problem, *method, means, spreads[first])
        for first, method in zip(which, methods, strict=True)
    ]


def _of_round(
    problem: Problem, algorithm: ISFedAvg, chosen: Choices, means: np.ndarray, spreads: np.ndarray
) -> Variance:
    """The variance of a round from every agent's mean gradient and the variance of one step."""
    num_agents, num_active = problem.num_agents, algorithm.num_active
    steps = problem.local_steps.astype(float)[:, None]
    # Without the 1/E_k an agent's estimate is E_k times as long.
    scale = np.ones_like(steps) if algorithm.divide_by_steps else steps
    scale = scale * problem.data.agent_weights[:, None]
    means, spreads = scale * means, scale**2 * spreads / steps
    from_agents = total_variance(algorithm.agent_design, chosen.agents, means / num_agents)
    prob = chosen.agent_prob(num_active)
    weight = np.divide(1.0, num_agents * prob, out=np.zeros(num_agents), where=prob > 0.0)
    # E[times^2] / L^2: an agent drawn twice works once and counts twice.
    times = prob / num_active
    if isinstance(algorithm.agent_design, WithReplacement):
        times = prob * (1.0 - prob) / num_active + prob**2
    from_examples = (times * weight**2) @ spreads
    return Variance(from_agents, from_examples, means.mean(axis=0))
