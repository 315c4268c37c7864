"""Setting d of the networks study: which accuracy has the minimiser, by how agents count?

    python docs/make/networks_weights.py

With 20 passes of batches of 10 an agent takes twice as many steps as it has rows, so a method that
does not divide by E_k moves the model mostly the way of large agents. The minimisers of both risks,
with a small ridge (without one there need not be any), show what this is worth on test rows that
are pooled.
"""

from __future__ import annotations

import numpy as np

from isfed import FederatedData, Problem, Softmax
from isfed.studies.experiment_config import read_study

RIDGES = (1e-3, 1e-4, 1e-5)


def main() -> None:
    """Print a table."""
    source = read_study("networks", setting="d").source
    given = source.make()
    data = given.data
    measure = source.measure(given)
    print("| ridge | every agent counts the same | agents count by their rows |\n|---|---|---|")
    for ridge in RIDGES:
        found = []
        for weights in (np.ones(given.num_agents), data.num_examples.astype(float)):
            weighted = FederatedData(data.features, data.targets, data.offsets, weights=weights)
            problem = Problem(weighted, Softmax(ridge=ridge, num_classes=10), 1, 1)
            found.append(float(measure(problem.optimum[None])[0, 1]))
        print(f"| {ridge:g} | {found[0]:.1%} | {found[1]:.1%} |", flush=True)


if __name__ == "__main__":
    main()
