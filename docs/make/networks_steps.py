"""The step sizes of the default for networks: found by short trials, and eta as published or not.

    python docs/make/networks_steps.py [--seeds 2] [a b-shards f]

For settings of `isfed reproduce networks`: the local step that `isfed.torch.train` finds, and the
final accuracy at that step, at half and at twice of it, and with eta of 0.01 and 0.04 in place of
0.02. The accuracies are on the test rows, the trials never see them.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from isfed import LookAheadPasses, simulate
from isfed.simulate.pilot_runs import with_best_step_size
from isfed.studies.experiment_config import read_study


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="*", default=["a", "b-shards", "f"])
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    heads = ("setting", "step found", "accuracy (%)", "half", "twice", "eta 0.01", "eta 0.04")
    print(f"| {' | '.join(heads)} |\n|---|{'---:|' * (len(heads) - 1)}")
    for name in given.settings:
        setting = read_study("networks", setting=name)
        num_active = setting.algorithms["FedAvg"].num_active
        problem = setting.source.make()
        method = with_best_step_size(
            problem, LookAheadPasses(num_active=num_active), rounds=setting.rounds
        )
        step = method.step_size
        tried = (
            method, replace(method, step_size=step / 2), replace(method, step_size=2 * step),
            replace(method, server_step_size=0.01), replace(method, server_step_size=0.04),
        )  # fmt: skip
        measure: Any = setting.source.measure(problem)
        cells = []
        for one in tried:
            history = simulate(
                problem, one, rounds=setting.rounds, repetitions=given.seeds, seed=5,
                measure=measure,
            )  # fmt: skip
            last = 100 * history.measured["accuracy"][:, -3:].mean(axis=1)
            cells.append(f"{last.mean():.1f} ± {last.std(ddof=1) / np.sqrt(last.size):.1f}")
        print(f"| {name} | {step:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
