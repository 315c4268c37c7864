"""The same numbers on every processor: every method under settings that stand for other machines.

    python tools/portable.py

Each setting makes NumPy, OpenBLAS or Numba choose the code of another processor, in processes of
their own. There every published method runs for a few rounds, and the tests of pinned hashes and
of the engines pass. It exits with 1 if a hash differs or a test fails.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parents[1]
TESTS = ["tests/test_pinned.py", "tests/simulate/test_engines.py"]
ROUNDS = 12
ALONE = "NumPy alone"  # np.exp and BLAS: where it differs, a setting shows that it works
MORE: dict[str, dict[str, Any]] = {  # what a method must be told, or what makes it do more
    "AdaptiveTau": {"budget": 3.0},
    "FedProx": {"stragglers": 0.5},
    "HierFAVG": {"edge_rounds": 2},
    "HybridFL": {"permit": 0.3},
    "KAVG": {"steps": 2},
    "Mocha": {"inner_rounds": 3},
    "PeriodicAveraging": {"steps": 2},
    "FedCor": {"warm_up": 3, "every": 3},
    "HiCSFL": {"output_layer": (1, 1)},
    "QFedAvg": {"power": 1.3},
    "QFedSGD": {"power": 1.3},
    "RestartedSGD": {"average": "pre", "steps": 2},
    "StichSGD": {"strong": 0.5, "shift": 50.0, "steps": 2},
}


class Outcome(NamedTuple):
    """What one setting gave."""

    hashes: dict[str, str]
    failure: str  # what pytest said last; empty if all passed


def settings() -> dict[str, dict[str, str]]:
    """The environment of every setting, by its name."""
    report: Any = np.show_config(mode="dicts")
    extensions = report["SIMD Extensions"].get("found", [])  # beyond what every such processor has
    widest = [name for name in extensions if "AVX512" in name or name == "X86_V4"]
    disable = "NPY_DISABLE_CPU_FEATURES"
    return {
        "as it is": {},
        "NumPy without AVX-512": {disable: " ".join(widest)} if widest else {},
        "NumPy without AVX2 too": {disable: " ".join(extensions)} if extensions else {},
        "OpenBLAS of Haswell": {"OPENBLAS_CORETYPE": "Haswell"},
        "OpenBLAS of Nehalem": {"OPENBLAS_CORETYPE": "Nehalem"},
        "one BLAS thread": {"OPENBLAS_NUM_THREADS": "1"},
        "two BLAS threads": {"OPENBLAS_NUM_THREADS": "2"},
        "Numba for any x86-64": {"NUMBA_CPU_NAME": "generic"},
        "hash seed 1": {"PYTHONHASHSEED": "1"},
        "hash seed 2": {"PYTHONHASHSEED": "2"},
    }


def hashed(*arrays: Any) -> str:
    """Eight digits for all bits of some arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:8]


def methods() -> Iterator[tuple[str, Any]]:
    """Every method of `isfed methods`, and variants that compute otherwise."""
    from isfed.sampling.designs import Spread
    from isfed.studies.config_schema import arguments
    from isfed.studies.name_registry import METHODS

    common = {"step_size": 0.01, "num_active": 4}

    def made(name: str, **options: Any) -> Any:
        known = arguments(METHODS[name])
        given = {key: value for key, value in common.items() if key in known}
        return METHODS[name](**given, **MORE.get(name, {}), **options)

    for name in METHODS:
        yield name, made(name)
        if "client_weights" in arguments(METHODS[name]):
            yield f"{name} by size", made(name, client_weights="size")
    yield "ISFedAvg, spread", made("ISFedAvg", agent_design=Spread(every=3))
    yield "ISFedAvg, drift", made("ISFedAvg", correction="drift")
    yield "AgnosticFL, stochastic", made("AgnosticFL", stochastic=True)
    yield "FedAsync, event queue", made("FedAsync", in_flight=3)
    for variant in ("two-sets", "near-optimal"):
        yield f"FOLB, {variant}", made("FOLB", variant=variant, penalty=0.1)


def problems() -> dict[str, Any]:
    """Few features and many, and a loss with exponentials."""
    from isfed import PAPER, FederatedData, Logistic, Problem

    narrow = PAPER.replace(num_agents=20, num_examples=15).make(seed=3)
    wide = PAPER.replace(num_agents=12, num_examples=15, num_features=11).make(seed=4)
    rows = [wide.data.agent(k) for k in range(8)]
    data = FederatedData.from_agents(
        [(x[: 8 + k], np.sign(y[: 8 + k])) for k, (x, y) in enumerate(rows)]
    )
    return {"narrow": narrow, "wide": wide, "logistic": Problem(data, Logistic(0.01), 2, 3)}


def hashes() -> dict[str, str]:
    """Of the data, and of what every method does with them on agents that are slow or away."""
    from isfed import simulate
    from isfed.datasets.partition import sizes_in_range
    from isfed.federation.virtual_clock import Clock, Times
    from isfed.problems.synthetic_problems import Synthetic
    from isfed.simulate.run_history import Costs

    numbers = np.random.default_rng(0).random((20_000, 40)) + 0.5
    digests = {
        ALONE: hashed(np.exp(numbers), numbers @ numbers[0], np.linalg.norm(numbers.ravel()))
    }
    devices = Synthetic(num_agents=30, most_examples=60).make(seed=1).data
    digests["devices"] = hashed(devices.features, devices.targets)
    digests["sizes"] = hashed(sizes_in_range(3500, num_agents=20, low=79, high=688))
    clock = Clock(jitter=0.3, drop=0.1)
    speeds = clock.speeds(np.uint64(1), 2000)
    times = clock.delayed(Times(*speeds), np.arange(2000), np.uint64(2), 3)
    digests["clock"] = hashed(*speeds, *times)
    for title, problem in problems().items():
        digests[f"data, {title}"] = hashed(problem.data.features, problem.data.targets)
        costs: Any = Costs(problem.num_params, 1)
        for name, method in methods():
            run = simulate(
                problem, method, rounds=ROUNDS, repetitions=2, seed=5, engine="agents",
                clock=clock, measure=costs,
            )  # fmt: skip
            digests[f"{name}, {title}"] = hashed(run.params, *run.measured.values())
    return digests


def outcome(environment: dict[str, str]) -> Outcome:
    """Run both under one setting."""
    variables = {**os.environ, **environment}
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    tested = subprocess.run(tests, env=variables, cwd=ROOT, capture_output=True, text=True)
    ours = [sys.executable, __file__, "--hashes"]
    run = subprocess.run(ours, env=variables, cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        return Outcome({}, run.stderr.strip().splitlines()[-1])
    last = (tested.stdout.strip().splitlines() or [tested.stderr])[-1]
    return Outcome(json.loads(run.stdout), last if tested.returncode else "")


def main() -> int:
    """Every setting, one line each; 0 if all agree."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--hashes", action="store_true", help="print those of this process as JSON")
    if parser.parse_args().hashes:
        print(json.dumps(hashes()))
        return 0
    every = settings()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = dict(zip(every, pool.map(outcome, every.values()), strict=True))
    first = outcomes["as it is"].hashes
    print(f"{'setting':24}{ALONE:14}{'data':12}{'methods':12}tests")
    wrong = 0
    for name, (digests, failure) in outcomes.items():
        ours = {key: value for key, value in digests.items() if key != ALONE}
        data = [
            value
            for key, value in ours.items()
            if key.startswith(("data", "devices", "sizes", "clock"))
        ]
        differ = [key for key in first if key != ALONE and digests.get(key) != first[key]]
        line = f"{name:24}{digests.get(ALONE, '-'):14}{hashed(*map(str, data)):12}"
        print(f"{line}{hashed(*map(str, ours.values())):12}{failure or 'pass'}")
        if differ:
            print(f"    {len(differ)} of {len(first)} differ: {'; '.join(differ[:5])}")
        wrong += bool(differ or failure)
    print(f"{len(first) - 1} hashes under {len(every)} settings: {wrong} settings differ or fail")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
