"""What a policy makes of a problem at a model: every agent's gradients and the probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isfed.base.argument_checks import check_active, check_vector
from isfed.base.progress import say
from isfed.federation.problem_arrays import check_batches
from isfed.methods import ISFedAvg
from isfed.problems import Problem
from isfed.problems.losses import LinearLoss
from isfed.sampling.designs import Design, WithReplacement, inclusion_probabilities
from isfed.sampling.policies import Policy, score_of_norms


class TheoryError(ValueError):
    """A constant that does not exist for this problem; the message is the reason."""


@dataclass(frozen=True, eq=False)
class Choices:
    """Inclusion probabilities of agents (sum L) and of examples (sum B_k for each agent k)."""

    agents: np.ndarray  # (K,): L p_k
    examples: np.ndarray  # (rows,): B_k p_n, agent by agent

    def agent_prob(self, num_active: int) -> np.ndarray:
        """p_k."""
        return self.agents / num_active

    def of_agent(self, problem: Problem, agent: int) -> np.ndarray:
        """B_k p_n of one agent's examples."""
        offsets = problem.data.offsets
        return self.examples[offsets[agent] : offsets[agent + 1]]


def check_model(problem: Problem, params: np.ndarray | None) -> np.ndarray:
    """A model to look at: w^o unless given."""
    if params is None:
        return problem.optimum
    return check_vector(params, name="params", size=problem.num_params)


def example_gradients(loss: Any, params: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The gradient of every example, (N, length of params)."""
    if isinstance(loss, LinearLoss):
        matrix = params.reshape(loss.compiled.num_rows, -1)
        slopes = loss.slopes(x @ matrix.T, y)
        outer = slopes[:, :, None] * x[:, None, :]
        return outer.reshape(len(y), -1) + 2.0 * loss.ridge * params
    one, rows = np.ones(1), range(len(y))
    return np.array([loss.gradient(params, x[i : i + 1], y[i : i + 1], one)[0] for i in rows])


def gradients_of_agents(problem: Problem, params: np.ndarray) -> Iterator[np.ndarray]:
    """Agent after agent, the gradients of its examples."""
    for agent in range(problem.num_agents):
        say("computing the gradients of all examples")
        yield example_gradients(problem.loss, params, *problem.data.agent(agent))


def risk_gradients(problem: Problem, params: np.ndarray) -> np.ndarray:
    """(K, M) the weighted gradients of the agents' risks, at one model or at one for each."""
    models = np.broadcast_to(params, (problem.num_agents, problem.num_params))
    gradients = np.empty(models.shape)
    for agent, model in enumerate(models):
        x, y = problem.data.agent(agent)
        gradients[agent] = problem.loss.gradient(model, x, y, np.ones(len(y)))[0]
    return problem.data.agent_weights[:, None] * gradients


def inclusion_of(scores: np.ndarray, num: int, policy: Policy, design: Design) -> np.ndarray:
    """The inclusion probabilities of a draw by scores, after cap and floor."""
    total = float(scores.sum())
    if policy.equal or not total > 0.0:
        return np.full(scores.size, num / scores.size)
    if isinstance(design, WithReplacement):  # expected counts, which no cap holds back
        return num * ((1.0 - policy.floor) * scores / total + policy.floor / scores.size)
    positive = np.count_nonzero(scores)
    if policy.floor == 0.0 and 0 < positive < num:
        # As the table draws: all of the positive ones, the others equally.
        rest = (num - positive) / (scores.size - positive)
        return np.where(scores > 0.0, 1.0, rest)
    return inclusion_probabilities(scores, num, floor=policy.floor)


def choices_at(problem: Problem, algorithm: ISFedAvg, params: np.ndarray | None = None) -> Choices:
    """The probabilities that the algorithm's policies aim at for a model (w^o unless given).

    Those of `oracle` at w^o and of `current` at the current model; what `running` and `memory`
    learn comes near them as the model comes near w^o. Cap and floor are applied as in a draw.
    """
    return all_choices_at(problem.batched_for(algorithm), [algorithm], params)[0]


def all_choices_at(
    problem: Problem, algorithms: Sequence[ISFedAvg], params: np.ndarray | None = None
) -> list[Choices]:
    """`choices_at` of several algorithms, in one pass over the data."""
    for algorithm in algorithms:
        check_active(algorithm.num_active, problem.num_agents)
        weights = getattr(algorithm, "client_weights", "uniform")
        if weights != "uniform":  # the theory takes the weights of agents from the problem
            raise ValueError(
                f"client_weights={weights!r} must be 'uniform' here; to weigh agents "
                "by size, give the data weights: FederatedData(..., weights=sizes)"
            )
        check_batches(problem, algorithm.example_design)
    model = check_model(problem, params)
    # Algorithms that draw examples alike share the scores and the probabilities of examples.
    sides = [(algorithm.examples, algorithm.example_design) for algorithm in algorithms]
    which = [sides.index(side) for side in sides]
    scores = np.empty((len(sides), problem.num_agents))
    weights = problem.data.agent_weights
    examples: dict[int, list[np.ndarray]] = {side: [] for side in which}
    for agent, gradients in enumerate(gradients_of_agents(problem, model)):
        norms = np.linalg.norm(gradients, axis=1)
        mean = gradients.mean(axis=0)
        square = float(mean @ mean)
        steps, batch = int(problem.local_steps[agent]), int(problem.batch_size[agent])
        for side, inclusions in examples.items():
            policy, design = sides[side]
            scores[side, agent] = weights[agent] * score_of_norms(
                norms, norms.size, square, steps, batch, policy.floor, policy.equal
            )
            inclusions.append(inclusion_of(norms, batch, policy, design))
    joined = {side: np.concatenate(inclusions) for side, inclusions in examples.items()}
    return [
        Choices(inclusion_of(scores[side], a.num_active, a.agents, a.agent_design), joined[side])
        for side, a in zip(which, algorithms, strict=True)
    ]
