"""Is the largest stable step size true? Runs at shares of it, on logistic and softmax problems.

    python docs/make/stable_steps.py [--rounds N]

Started at w^o, a run is stable if its msd stays near what the step size predicts to first order
(`theory.predict`). Beyond the limit that ratio grows without bound for least squares; logistic and
softmax losses have bounded gradients, so there it grows, but stays finite.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from isfed import (
    FederatedData,
    ISFedAvg,
    Logistic,
    Memory,
    Policy,
    Problem,
    Softmax,
    Uniform,
    simulate,
)
from isfed.theory import predict
from isfed.theory.probabilities import choices_at
from isfed.theory.stable_step_size import StableSteps

SHARES = (0.25, 0.5, 1.0, 2.0, 4.0)
WAYS: dict[str, tuple[Policy, Policy]] = {
    "uniform": (Uniform(), Uniform()),
    "agents": (Memory(), Uniform()),
    "both": (Memory(), Memory()),
}


def make(
    seed: int,
    *,
    classes: int = 2,
    noise: float = 0.5,
    skew: float = 0.3,
    ridge: float = 1e-3,
    num_agents: int = 50,
    num_features: int = 10,
    batch_size: int = 8,
    local_steps: int = 1,
) -> Problem:
    """Agents whose features have scales and places of their own; `noise` blurs the classes."""
    rng = np.random.default_rng(seed)
    width = 1 if classes == 2 else classes
    truth = 2.0 * rng.standard_normal((num_features + 1, width)) / np.sqrt(num_features)
    agents = []
    for _ in range(num_agents):
        rows = int(rng.integers(20, 120))
        scale = np.exp(skew * rng.standard_normal())
        place = skew * rng.standard_normal(num_features)
        x = np.column_stack(
            [scale * rng.standard_normal((rows, num_features)) + place, np.ones(rows)]
        )
        if classes == 2:
            y = np.where((x @ truth)[:, 0] + noise * rng.logistic(size=rows) > 0.0, 1.0, -1.0)
        else:
            drawn = x @ truth + noise * rng.gumbel(size=(rows, classes))
            y = drawn.argmax(axis=1).astype(float)
        agents.append((x, y))
    loss = Logistic(ridge) if classes == 2 else Softmax(ridge, num_classes=classes)
    data = FederatedData.from_agents(agents)
    return Problem(data, loss, batch_size=batch_size, local_steps=local_steps)


PROBLEMS = {
    "logistic": {"seed": 1},
    "noisy classes": {"seed": 2, "noise": 4.0},
    "clear classes": {"seed": 3, "noise": 0.1},
    "skewed agents": {"seed": 4, "skew": 1.0},
    "one example a step": {"seed": 5, "batch_size": 1},
    "forty features": {"seed": 6, "num_features": 40},
    "five local steps": {"seed": 7, "local_steps": 5},
    "three classes": {"seed": 8, "classes": 3},
    "six classes, skewed": {"seed": 9, "classes": 6, "skew": 0.6},
}


def ratios(
    problem: Problem, *, rounds: int, num_active: int = 5, shares: Sequence[float] = SHARES
) -> Iterator[tuple]:
    """For every way to sample its limits, and the msd over its first order at shares of it."""
    stable = StableSteps(problem)
    for name, (agents, examples) in WAYS.items():
        algorithm = ISFedAvg(step_size=1.0, num_active=num_active, agents=agents, examples=examples)
        largest, careful = stable.limits(algorithm, choices_at(problem, algorithm))
        tiny = replace(algorithm, step_size=1e-3 * largest)
        first_order = predict(problem, tiny).steady / (1e-3 * largest)
        found = []
        for share in shares:
            history = simulate(
                problem, replace(algorithm, step_size=share * largest), rounds=rounds,
                repetitions=4, initial=problem.optimum,
            )  # fmt: skip
            msd = history.mean[-(rounds // 3) :].mean()
            found.append(float(msd / (share * largest * first_order)))
        yield name, largest, careful, found


def main() -> None:
    """Print one line for every problem and way to sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3000)
    rounds = parser.parse_args().rounds
    warnings.simplefilter("ignore")
    print("msd over its first order, at these shares of the largest stable step size:")
    print(f"{'problem':22s} {'sampling':9s} {'largest':>8s} {'careful':>8s}", *SHARES, sep="  ")
    for name, given in PROBLEMS.items():
        for way, largest, careful, found in ratios(make(**given), rounds=rounds):
            cells = "  ".join(f"{ratio:8.3g}" for ratio in found)
            print(f"{name:22s} {way:9s} {largest:8.3g} {careful:8.3g}  {cells}", flush=True)


if __name__ == "__main__":
    main()
