"""Would importance sampling, or a correction, help this network? From one pass at a given model.

The cloud wants the mean gradient g = 1/K sum_k g_k. A round estimates it from L agents, each by E_k
batches of B_k examples. Its variance has two parts: which agents are heard (here by Monte-Carlo
over the draws of the design), and which examples they use (here from pairs of batches).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from isfed.base.argument_checks import check_active, check_seed, check_vector, check_whole, checked
from isfed.federation.agents import TrainRequest
from isfed.methods.fedavg import FedAvg
from isfed.problems import Problem
from isfed.sampling.designs import Deville, HartleyRao, Spread, inclusion_probabilities
from isfed.sampling.designs.spread import order_alike, projection
from isfed.torch.flat_module import seeded
from isfed.torch.network import Network

SKETCH = 4096  # numbers that stand for a gradient where all of them would not fit
MOST_NUMBERS = 50_000_000
FLOOR = 0.2  # of the probabilities of agents, as `importance` has it
CLEARLY = 0.8  # a strategy beats a simpler one if its variance is below this share of the other's
BIASED = 0.25  # of the variance of uniform draws: a bias above it is worth a sentence
DEFAULT = (  # whatever the variances are, for what they say of one round is not what it gains
    "Use LookAheadPasses(num_active=...), which is what train(problem, rounds=..., "
    "num_active=...) does."
)
SIMPLEST_FIRST = {  # what to write for each strategy
    "uniform": "FedAvg(...): agents and examples are alike enough",
    "importance": "importance(...)",
    "importance of agents and examples": "importance(..., examples=Memory())",
    "spread": "importance(..., agents=Uniform(), agent_design=Spread())",
    "difference": 'importance(..., correction="difference")',
}


@dataclass(frozen=True)
class NetworkDiagnosis:
    """The variance of one round's estimate of the gradient, by sampling strategy.

    Attributes:
        variance: by strategy, in units of |g|^2.
        stderr: the standard error of each, from the Monte-Carlo draws.
        drift: |mean local gradient of a turn - g|^2 / |g|^2, if all agents take part: the bias that
            several local steps add, which no sampling removes and correction="drift" does.
        signal: |g|^2.
    """

    variance: dict[str, float]
    stderr: dict[str, float]
    drift: float
    signal: float

    @property
    def choice(self) -> str:
        """The sampling strategy that is recommended: the simplest whose variance is near the least.

        Never "drift", whatever the bias: in the study of networks (docs/networks.md) it nowhere
        ended clearly above "difference", and lost or diverged on the CNN.
        """
        least = min(self.variance.values())
        return next(name for name in SIMPLEST_FIRST if least >= CLEARLY * self.variance[name])

    def recommendation(self) -> str:
        """The method to use, the best single sampling strategy, and the numbers behind that."""
        numbers = "; ".join(
            f"{name} {value:.3g} ± {self.stderr[name]:.1g}" for name, value in self.variance.items()
        )
        text = (
            f"{DEFAULT} If you change the sampling alone: {SIMPLEST_FIRST[self.choice]}. Variance "
            f"of a round over the squared gradient: {numbers}. Bias of the local steps: "
            f"{self.drift:.3g}"
        )
        if self.drift <= BIASED * self.variance["uniform"]:
            return f"{text}."
        return (
            f"{text}, which is not small beside it: fewer or smaller local steps lower it, and "
            'correction="drift" removes it, but it was unstable on a CNN at the step sizes of the '
            "others."
        )

    __str__ = recommendation


def _sketcher(size: int, count: int, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """Keeps vectors as they are, or adds them up with random signs into fewer numbers.

    Squared lengths of differences are kept: exactly, or to about sqrt(2 / SKETCH).
    """
    if size * count <= MOST_NUMBERS or size <= SKETCH:
        return lambda vector: vector
    rng = np.random.default_rng(seed)
    place, sign = rng.integers(SKETCH, size=size), rng.choice([-1.0, 1.0], size)
    return lambda vector: np.bincount(place, vector * sign, SKETCH)


@checked
def diagnose_network(
    problem: Problem,
    *,
    num_active: int,
    step_size: float,
    params: np.ndarray | None = None,
    draws: int = 400,
    seed: int = 0,
) -> NetworkDiagnosis:
    """The variance of a round under each sampling strategy, at one model.

    It takes every agent's gradient, four batches and two turns. "spread" and "difference" assume
    that the cloud remembers the agents' gradients at this very model: the best that they can do.

    Args:
        problem: its loss is a `Network`.
        num_active: L, the number of agents per round.
        step_size: the size of a local step.
        params: the model, (M,), best one that has been trained for a while: at the start all agents
            look alike. The network's first model unless given.
        draws: how many sets of agents are drawn for the Monte-Carlo estimate, at least 2.
        seed: the seed of all random draws.
    """
    network = problem.loss
    if not isinstance(network, Network):
        raise TypeError(f"diagnose needs a Network, got {type(network).__name__}")
    if network.optimizer is not None:
        raise ValueError(
            "diagnose reads gradients off plain local steps, which an optimizer of the agents does "
            "not take: give it a problem whose Network has no optimizer"
        )
    if problem.data.weights is not None:
        raise ValueError("diagnose counts all agents alike: give it data without weights")
    check_active(num_active, problem.num_agents)
    check_whole(draws, name="draws", least=2)
    check_seed(seed)
    if not 0.0 < step_size < np.inf:
        raise ValueError(f"step_size={step_size} must be a positive number")
    model = network.initial()
    if params is not None:
        model = check_vector(params, name="params", size=model.size)
    count, rng = problem.num_agents, np.random.default_rng(seed)
    sketch = _sketcher(model.size, count, seed)
    gradients, uniform_noise, scored_noise = [], np.empty(count), np.empty(count)
    with seeded(seed):  # what the module draws, such as dropout
        for k in range(count):
            x, y = problem.data.agent(k)
            gradient, norms = network.gradient(model, x, y, np.ones(len(y)))
            gradients.append(sketch(gradient))
            batch, steps = int(problem.batch_size[k]), int(problem.local_steps[k])
            even = np.full(len(y), 1.0 / len(y))
            prob = norms / norms.sum() if norms.sum() > 0.0 else even
            prob = 0.9 * prob + 0.1 / len(y)
            for noise, chances in ((uniform_noise, even), (scored_noise, prob)):
                noise[k] = _batch_variance(network, model, (x, y), chances, batch, rng) / steps
    vectors = np.array(gradients)
    mean = vectors.mean(axis=0)
    signal = float(mean @ mean)
    if signal == 0.0:
        raise ValueError(
            "the mean gradient at this model is 0: the variance cannot be compared with it; give "
            "params of another model"
        )
    squares, alike = np.einsum("km,km->k", vectors, vectors), np.ones(count)
    means = np.broadcast_to(mean, vectors.shape)
    cases: list[tuple[Any, np.ndarray, np.ndarray, np.ndarray]] = [
        (HartleyRao(), alike, vectors, uniform_noise),  # as FedAvg draws
        (Deville(), np.sqrt(squares + uniform_noise), vectors, uniform_noise),
        (Deville(), np.sqrt(squares + scored_noise), vectors, scored_noise),
        (_spread(vectors), alike, vectors, uniform_noise),
        (Deville(), alike, means, uniform_noise),
    ]
    variance, stderr = {}, {}
    for name, case in zip(SIMPLEST_FIRST, cases, strict=True):
        value, error = _round_variance(*case, num_active, draws, rng)
        variance[name], stderr[name] = value / signal, error / signal
    drift = _drift(problem, model, step_size, seed)
    return NetworkDiagnosis(variance, stderr, drift, signal)


def _spread(gradients: np.ndarray) -> Any:
    """The design along an order in which neighbours have like gradients."""
    spread = Spread()
    points = gradients @ projection(gradients.shape[1], spread.sketch)
    return spread.over(points, order_alike(points))


def _batch_variance(
    network: Network, model: np.ndarray, data: tuple, prob: np.ndarray, batch: int, rng: Any
) -> float:
    """E |batch gradient - gradient|^2, from two independent batches drawn with replacement."""
    x, y = data
    pair = []
    for _ in range(2):
        rows = rng.choice(len(y), batch, p=prob)
        weight = 1.0 / (len(y) * prob[rows])
        pair.append(network.gradient(model, x[rows], y[rows], weight)[0])
    difference = pair[0] - pair[1]
    return float(difference @ difference) / 2.0


def _round_variance(
    design: Any, scores: np.ndarray, vectors: np.ndarray, noise: np.ndarray, num_active: int,
    draws: int, rng: Any,
) -> tuple[float, float]:  # fmt: skip
    """E |estimate - mean|^2 over draws of agents, and the standard error of that."""
    count, total = len(scores), scores.sum()
    shares = scores / total if total > 0.0 else np.full(count, 1.0 / count)
    inclusion = inclusion_probabilities((1.0 - FLOOR) * shares + FLOOR / count, num_active)
    mean = vectors.mean(axis=0)
    squares = np.empty(draws)
    for i in range(draws):
        drawn = design.draw(inclusion, rng=int(rng.integers(2**31)))
        # Not renormalised: that would bias the mean.
        estimate = (1.0 / (count * inclusion[drawn])) @ vectors[drawn]
        error = estimate - mean
        squares[i] = error @ error
    from_examples = float((noise / (count**2 * inclusion)).sum())
    return float(squares.mean()) + from_examples, float(squares.std(ddof=1) / np.sqrt(draws))


def _drift(problem: Problem, model: np.ndarray, step_size: float, seed: int) -> float:
    """|mean over agents of a turn's mean gradient - g|^2 / |g|^2, less what is noise of batches."""
    network: Any = problem.loss
    rules = FedAvg(step_size=step_size, num_active=1).rules(problem.num_agents)
    agents = network.make_agents(problem, rules, seed=seed, repetition=0)
    total, start, noise = np.zeros(model.size), np.zeros(model.size), 0.0
    trained = agents.num_trained  # buffers have no gradient
    for k in range(problem.num_agents):
        turns = TrainRequest(np.array([k]), model, np.array([step_size]))
        steps = int(problem.local_steps[k])
        pair = [agents.work(turns, i).changes[0] / (-step_size * steps) for i in range(2)]
        total += (pair[0] + pair[1]) / 2.0
        start += agents.gradients(np.array([k]), model)[0]
        noise += float(((pair[0] - pair[1])[:trained] ** 2).sum()) / 4.0
    drift = (total - start)[:trained] / problem.num_agents
    gradient = start / problem.num_agents
    bias = float(drift @ drift) - noise / problem.num_agents**2
    return max(bias, 0.0) / float(gradient @ gradient)


diagnose = diagnose_network  # the public name
