"""The variance of one round at a frozen model, exactly: how many times smaller than uniform.

    python docs/make/variance_frozen.py     # one minute; tables for docs/appendix/variance.md

Uniform sampling runs for 150 rounds at step size 1/2. Then L = 10 of 100 agents are drawn, whose
full gradients are exact. What is remembered is 50 rounds old: c_k are the gradients at round 100,
and orders are made from what was seen until then, of gradients at round 100, or of their news
since round 50. Variances are exact by joint inclusion probabilities; those of local pivotal draws
are over 4000 draws (standard error about 2%). A second table makes the order of a spread in three
ways. It is no study of the engine: nothing is trained and no seed enters, but through the model.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from variance_problems import AGENTS, RIDGE, STEPS, Labelled, pooled

from isfed import (
    Deville,
    FederatedData,
    HartleyRao,
    ISFedAvg,
    LocalPivotal,
    Problem,
    Softmax,
    Spread,
    Uniform,
)
from isfed.base.random_streams import Stream
from isfed.datasets.named_datasets import mnist_by_writer
from isfed.sampling.designs import inclusion_probabilities
from isfed.sampling.designs.exact_variance import total_variance
from isfed.sampling.designs.spread import order_alike, projection
from isfed.simulate.simulate_call import make_run

PIXELS = 14
ACTIVE, EVERY, SKETCH, FLOOR, DRAWS = 10, 50, 8, 0.1, 4000
CURVE = 2  # numbers of a sketch that the curve goes through


@cache
def writers() -> Problem:
    """The digits of 100 writers, at least 20 of each."""
    found = mnist_by_writer().train
    assert found.groups is not None
    names, counts = np.unique(found.groups, return_counts=True)
    agents = []
    for writer in names[counts >= 20][:AGENTS]:
        rows = found.groups == writer
        agents.append((pooled(found.features[rows], PIXELS), found.targets[rows]))
    data = FederatedData.from_agents(agents)
    return Problem(data, Softmax(RIDGE, num_classes=10), 1, 20, name="writers")


def gradients(problem: Problem, params: np.ndarray) -> np.ndarray:
    """(K, M) of the agents' risks."""
    found = []
    for agent in range(problem.num_agents):
        x, y = problem.data.agent(agent)
        found.append(problem.loss.gradient(params, x, y, np.ones(len(y)))[0])
    return np.array(found)


def variance(vectors: np.ndarray, design: Any, *, equal: bool, order: Any = None) -> float:
    """Of the mean over agents, estimated from a draw; by norm unless all agents are `equal`."""
    count = len(vectors)
    scores = np.ones(count) if equal else np.linalg.norm(vectors, axis=1)
    inclusion = inclusion_probabilities(scores, ACTIVE, floor=FLOOR)
    order = np.arange(count) if order is None else order
    return float(total_variance(design, inclusion[order], vectors[order] / count).sum())


def drawn_variance(vectors: np.ndarray, points: np.ndarray) -> float:
    """The same for local pivotal draws with equal probabilities, from many of them."""
    design, stream = LocalPivotal(points), Stream(0)
    inclusion = np.full(len(vectors), ACTIVE / len(vectors))
    sums = [vectors[design.draw(inclusion, stream)].sum(axis=0) / ACTIVE for _ in range(DRAWS)]
    return float(np.mean(np.sum((np.array(sums) - vectors.mean(axis=0)) ** 2, axis=1)))


def gradients_seen(problem: Problem, step: float) -> list[np.ndarray]:
    """(K, M) each: the agents' gradients after 50, 100 and 150 rounds of uniform sampling."""
    algorithm = ISFedAvg(step_size=step, num_active=ACTIVE, agents=Uniform(), examples=Uniform())
    run = make_run(problem, algorithm, seed=0)
    seen = []
    for _ in range(3):
        run.advance(EVERY)
        seen.append(gradients(problem, run.params[0]))
    return seen


def row(seen: list[np.ndarray]) -> list[float]:
    """Times smaller than uniform: importance, spread, local pivotal, then differences."""
    oldest, old, new = seen
    project = projection(new.shape[1], SKETCH)
    news, before = new - old, (old - oldest) @ project
    base = variance(new, HartleyRao(), equal=True)
    length = np.linalg.norm(news, axis=1)
    weighted = before * (length.mean() / np.maximum(length, 1e-12))[:, None]
    found = (
        variance(new, Deville(), equal=False),
        variance(new, Deville(), equal=True, order=order_alike(old @ project)),
        drawn_variance(new, old @ project),
        variance(news, HartleyRao(), equal=True),
        variance(news, Deville(), equal=False),
        variance(news, Deville(), equal=False, order=order_alike(weighted)),
    )
    return [base / value for value in found]


def by_means(points: np.ndarray) -> np.ndarray:
    """An order by L clusters of k-means: along their centres, and within each to the next."""
    from scipy.cluster.vq import kmeans2

    centres, cluster = kmeans2(points, ACTIVE, minit="++", seed=0)  # pyright: ignore[reportCallIssue]
    along = [c for c in order_alike(centres) if (cluster == c).any()]
    found = []
    for place, c in enumerate(along):
        ahead = centres[along[(place + 1) % len(along)]] - centres[c]
        units = np.flatnonzero(cluster == c)
        found.append(units[np.argsort(points[units] @ ahead, kind="stable")])
    return np.concatenate(found)


def by_morton(points: np.ndarray) -> np.ndarray:
    """An order along a Morton curve: the bits of the ranks in the first sketch numbers in turn."""
    ranks = np.argsort(np.argsort(points[:, :CURVE], axis=0), axis=0)
    bits = len(points).bit_length()
    keys = [
        tuple(int(rank >> bit) & 1 for bit in range(bits - 1, -1, -1) for rank in row)
        for row in ranks
    ]
    return np.array(sorted(range(len(points)), key=keys.__getitem__))


ORDERS = {"Ward's tree": order_alike, "k-means": by_means, "Morton curve": by_morton}


def orders_row(seen: list[np.ndarray]) -> list[float]:
    """Times smaller than uniform: a spread of equal probabilities, by how its order is made."""
    _, old, new = seen
    points = old @ projection(new.shape[1], SKETCH)
    base = variance(new, HartleyRao(), equal=True)
    return [
        base / variance(new, Deville(), equal=True, order=make(points)) for make in ORDERS.values()
    ]


def main() -> None:
    """Print the tables."""
    assert Spread().sketch == SKETCH
    print("| | importance | spread | local pivotal | difference | with importance | and spread |")
    print("|---" * 7 + "|")
    problems = {name: (Labelled(rows=name).make(), 0.5 * step) for name, step in STEPS.items()}
    problems["writers"] = writers(), 0.5
    seen = {}
    for name, (problem, step) in problems.items():
        seen[name] = gradients_seen(problem, step)
        print(f"| {name} | " + " | ".join(f"{x:.3g}" for x in row(seen[name])) + " |", flush=True)
    print(
        "\n| spread, order by | " + " | ".join(ORDERS) + " |\n" + "|---" * (1 + len(ORDERS)) + "|"
    )
    for name, found in seen.items():
        print(f"| {name} | " + " | ".join(f"{x:.3g}" for x in orders_row(found)) + " |")


if __name__ == "__main__":
    main()
