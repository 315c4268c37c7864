"""The figures that the commands on tables are held to.

python docs/make/table_figures.py optimum    # CPU seconds to w^o: MNIST, and 36 agents
python docs/make/table_figures.py diagnose   # a million rows: CPU seconds and memory
python docs/make/table_figures.py agents     # compare with ten thousand agents
python docs/make/table_figures.py gain       # predicted against measured gain, in dB
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
from stable_steps import PROBLEMS, make

from isfed import FederatedData, ISFedAvg, Memory, Policy, Problem, Softmax, Uniform, simulate
from isfed.datasets import standardise
from isfed.datasets.named_datasets import mnist_by_writer
from isfed.theory import diagnose
from isfed.theory.probabilities import choices_at
from isfed.theory.stable_step_size import StableSteps

SMALL = 0.02  # of the largest stable step size


def pooled_mnist(rows: int = 20_000, num_agents: int = 100) -> Problem:
    """MNIST pooled to 14 x 14 and a constant; every agent has one digit."""
    found = mnist_by_writer().train
    images, digits = np.asarray(found.features)[:rows], np.asarray(found.targets)[:rows]
    square = images[:, :784].reshape(rows, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(rows, 196)
    square = square / max(1.0, square.max())
    x = np.column_stack([square, np.ones(rows)])
    order = np.argsort(digits, kind="stable")
    edges = [0]
    for digit in range(10):
        count = int(np.sum(digits == digit))
        share = num_agents // 10
        edges += (edges[-1] + count * np.arange(1, share + 1) // share).tolist()
    data = FederatedData(x[order], digits[order].astype(float), np.array(edges))
    return Problem(data, Softmax(1e-3, num_classes=10))


def thirty_six_agents(rows: int = 4000) -> Problem:
    """6 classes, 43 features: one column is zero, ten sum to one beside the intercept."""
    rng = np.random.default_rng(8)
    shares = rng.dirichlet(np.full(10, 0.5), rows)
    measured = rng.standard_normal((rows, 31)) * np.exp(rng.standard_normal(31))
    raw = np.column_stack([measured, shares, np.zeros(rows)])
    margins = raw @ rng.standard_normal((raw.shape[1], 6)) + 2.0 * rng.gumbel(size=(rows, 6))
    edges = np.sort(rng.choice(np.arange(2, rows - 2), 35, replace=False))
    y = margins.argmax(axis=1).astype(float)
    data, _ = standardise(FederatedData(raw, y, np.array([0, *edges, rows])))
    x = np.column_stack([data.features, np.ones(rows)])
    return Problem(FederatedData(x, y, data.offsets), Softmax(1e-3, num_classes=6))


def optimum() -> None:
    """CPU seconds to w^o."""
    for name, problem in (("36 agents", thirty_six_agents()), ("MNIST", pooled_mnist())):
        began, wall = time.process_time(), time.perf_counter()
        model = problem.optimum
        spent, waited = time.process_time() - began, time.perf_counter() - wall
        risk = problem.risk(model)
        print(f"{name}: {spent:.1f} s of CPU, {waited:.1f} s of time, risk {risk:.12f}", flush=True)


def run(*words: str) -> tuple[float, float]:
    """Run the command line; returns its CPU seconds and its most memory in bytes."""
    child = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-m", "isfed", *words])
    _, status, used = os.wait4(child, 0)
    if status:
        raise SystemExit(f"isfed {' '.join(words)} failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024.0


def write_csv(path: Path, rows: int, columns: int, num_agents: int) -> None:
    """A table of normal numbers whose agents have noise of their own."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, columns))
    agents = rng.integers(0, num_agents, rows)
    noise = np.exp(rng.standard_normal(num_agents))[agents]
    y = x @ rng.standard_normal(columns) + noise * rng.standard_normal(rows)
    import pandas as pd

    frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(columns)])
    frame.insert(0, "site", agents)
    frame["y"] = y
    frame.to_csv(path, index=False)


def million() -> None:
    """`isfed diagnose` on 10^6 rows x 20 columns."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "million.csv"
        write_csv(path, 1_000_000, 20, 1000)
        size = path.stat().st_size
        words = ["diagnose", str(path), "--agent", "site", "--target", "y"]
        spent, memory = run(*words, "--out", f"{folder}/out")
        print(
            f"diagnose, 10^6 x 20, a file of {size / 1e6:.0f} MB: {spent:.1f} s of CPU, "
            f"{memory / 1e6:.0f} MB ({memory / size:.2f} times the file)"
        )


def ten_thousand() -> None:
    """`isfed compare` with 10 000 agents, as short as it advises."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agents.csv"
        write_csv(path, 200_000, 10, 10_000)
        began = time.perf_counter()
        words = ["compare", str(path), "--agent", "site", "--target", "y", "--least-rows", "2"]
        words += ["--rounds", "500", "--repetitions", "5"]
        spent, memory = run(*words, "--out", f"{folder}/out")
        waited = time.perf_counter() - began
        print(f"compare, 10 000 agents: {waited:.0f} s of time, {spent:.0f} s of CPU, "
              f"{memory / 1e6:.0f} MB")  # fmt: skip


def gain() -> None:
    """The predicted against the measured gain of the msd, at small steps."""
    ways: dict[str, tuple[Policy, Policy]] = {
        "agents": (Memory(), Uniform()),
        "examples": (Uniform(), Memory()),
        "both": (Memory(), Memory()),
    }
    errors = []
    for name, given in PROBLEMS.items():
        problem = make(**given)
        found = diagnose(problem, num_active=5, theory=False)
        plain = ISFedAvg(step_size=1.0, num_active=5)
        largest, _ = StableSteps(problem).limits(plain, choices_at(problem, plain))
        step = SMALL * largest
        measured = {}
        for way, (agents, examples) in {"uniform": (Uniform(), Uniform()), **ways}.items():
            algorithm = replace(plain, step_size=step, agents=agents, examples=examples)
            history = simulate(
                problem, algorithm, rounds=6000, repetitions=8, initial=problem.optimum
            )
            measured[way] = history.steady(share=0.75).db
        for way in ways:
            seen = measured["uniform"] - measured[way]
            errors.append(found.options[way].gain_db - seen)
            print(f"{name:22s} {way:9s} predicted {found.options[way].gain_db:6.2f} dB, measured "
                  f"{seen:6.2f} dB", flush=True)  # fmt: skip
    print(f"mean absolute error {np.mean(np.abs(errors)):.2f} dB over {len(errors)}, largest "
          f"{np.max(np.abs(errors)):.2f} dB")  # fmt: skip


def main() -> None:
    """Run one of them."""
    figures = {"optimum": optimum, "diagnose": million, "agents": ten_thousand, "gain": gain}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figure", choices=figures)
    chosen = parser.parse_args().figure
    warnings.simplefilter("ignore")
    figures[chosen]()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"({most:.0f} MB here)")


if __name__ == "__main__":
    main()
