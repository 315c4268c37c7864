"""`isfed.torch.BatchSampler` against PyTorch's weighted sampler: draw a batch, change its scores.

    python benchmarks/speed/loader_sampler.py [--rows 10000000] [--batch 256] [--quick]

`WeightedRandomSampler` cannot change its weights, takes at most 2**24 rows, and does not honour
inclusion probabilities without replacement; it needs a pass over all weights per draw.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from measure import Case, Report, by_turns, load
from torch.utils.data import WeightedRandomSampler

from isfed.torch import BatchSampler, ImportanceSampler


def ours(rows: int, batch: int, scores: np.ndarray) -> Case:
    """Batches with an update each."""
    sampler = ImportanceSampler(rows)
    sampler.update(np.arange(rows), scores)
    batches = iter(BatchSampler(sampler, batch, num_batches=10**9))
    fresh = torch.from_numpy(scores[:batch]).float()

    def advance(rounds: int) -> None:
        for _ in range(rounds):
            sampler.update(torch.tensor(next(batches)), fresh)

    return advance


def theirs(rows: int, batch: int, scores: np.ndarray) -> Case:
    """Batches without an update."""
    weights: Any = torch.from_numpy(scores)
    sampler = WeightedRandomSampler(weights, batch, replacement=False)

    def advance(rounds: int) -> None:
        for _ in range(rounds):
            list(sampler)

    return advance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10**7)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    scores = np.random.default_rng(0).lognormal(0.0, 1.0, given.rows)
    cases = {"isfed": ours(given.rows, given.batch, scores)}
    cases["WeightedRandomSampler"] = theirs(given.rows, given.batch, scores)
    report = Report(quick=given.quick)
    times = by_turns(cases, report)
    report.compare("batch", "isfed", times["isfed"], *list(times.items())[1])
    print(f"rows {given.rows}, batch {given.batch}; {load()}")


if __name__ == "__main__":
    main()
