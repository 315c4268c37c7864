"""What says how much an agent still has to teach: three scores for the passes by importance.

    python docs/make/networks_scores.py [--seeds 3] [a e f]

For settings of `isfed reproduce networks`: the final accuracy of the default where an agent is
heard by the length of its last change, of what that differs by from the mean of its cohort, or of
its part in the last layer, and where all are heard equally often. Its local step is that of short
trials; the seeds are not those of the study.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isfed import LookAheadPasses, Memory, StratifiedPasses, Uniform, simulate
from isfed.simulate.pilot_runs import with_best_step_size
from isfed.studies.experiment_config import read_study


@dataclass(frozen=True)
class Residual(StratifiedPasses):
    """By the length of the change less the mean of the cohort's."""

    def _scores(self, evidence: Any, who: np.ndarray, facts: Any) -> np.ndarray:
        return np.linalg.norm(evidence.change - evidence.change.mean(axis=0), axis=1)


@dataclass(frozen=True)
class LastLayer(StratifiedPasses):
    """By the length of the change of the last layer."""

    last: int = 1

    def _scores(self, evidence: Any, who: np.ndarray, facts: Any) -> np.ndarray:
        return np.linalg.norm(evidence.change[:, -self.last :], axis=1)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="*", default=["a", "e", "f"])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    print("| setting | change | residual | last layer | equally often |\n|---|---:|---:|---:|---:|")
    for name in given.settings:
        setting = read_study("networks", setting=name)
        problem, count = setting.source.make(), setting.algorithms["FedAvg"].num_active
        method = with_best_step_size(
            problem, LookAheadPasses(num_active=count), rounds=setting.rounds
        ).parts()
        last = [p.numel() for p in problem.loss.worker.flat.params][-2:]  # weight and bias
        policy = Memory(floor=0.3)
        samplers = (
            StratifiedPasses(count, policy), Residual(count, policy),
            LastLayer(count, policy, last=sum(last)), StratifiedPasses(count, Uniform()),
        )  # fmt: skip
        measure: Any = setting.source.measure(problem)
        cells = []
        for sampler in samplers:
            history = simulate(
                problem, replace(method, sampler=sampler), rounds=setting.rounds,
                repetitions=given.seeds, seed=5, measure=measure,
            )  # fmt: skip
            end = 100 * history.measured["accuracy"][:, -3:].mean(axis=1)
            cells.append(f"{end.mean():.1f} ± {end.std(ddof=1) / np.sqrt(end.size):.1f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
