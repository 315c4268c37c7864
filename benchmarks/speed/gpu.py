"""Turns one by one and all at once on a GPU: seconds per round, interleaved in one run.

    python benchmarks/speed/gpu.py [--device cuda] [--rounds 20] [--model mlp|cnn|small|gelu|all]

The work is that of torch_overhead.py. The bare loop of PyTorch is not in it: it holds its data on
the CPU. --device cpu tries the script where there is no GPU.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch_overhead import MODELS, make_data, report, ways


def measure(runs: dict, rounds: int) -> dict[str, np.ndarray]:
    """Wall seconds per round of every way, (rounds,), by turns; a round ends on the CPU."""
    for run in runs.values():
        run.round()
    seconds = {name: np.empty(rounds) for name in runs}
    for i in range(rounds):
        for name, run in runs.items():
            before = time.perf_counter()
            run.round()
            seconds[name][i] = time.perf_counter() - before
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--model", choices=(*MODELS, "all"), default="all")
    given = parser.parse_args()
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("PyTorch finds no CUDA device here; --device cpu tries the script")
    for name in MODELS if given.model == "all" else [given.model]:
        runs = ways(MODELS[name], make_data(), given.device)
        seconds = measure(runs, given.rounds)
        report(f"{name} on {given.device}, wall time, median of {given.rounds} rounds", seconds)
        print(f"  chosen: {runs['chosen'].agents.how}")


if __name__ == "__main__":
    main()
