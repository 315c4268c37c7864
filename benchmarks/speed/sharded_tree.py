"""The cost of a draw from a sharded tree: 1, 4 and 16 shards beside one tree, equal draw for draw.

    python benchmarks/speed/sharded_tree.py [--largest 7] [--ray 2]

prints the microseconds of a draw of 100 from 10^6 units on (each median of seven tries), and the
bytes that the coordinator keeps. With --ray the shards are actors on a local cluster.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from isfed.sampling.designs import ShardedTree, SumTree
from isfed.sampling.designs.tree_shard import on_ray

DRAWN, TRIES, DRAWS = 100, 7, 20
SHARDS = (1, 4, 16)


def micros(draw: Callable[[int], Any]) -> tuple[float, float, float]:
    """The median, the least and the most microseconds of a draw."""
    draw(0)
    times = []
    for _ in range(TRIES):
        began = time.perf_counter()
        for seed in range(DRAWS):
            draw(seed)
        times.append((time.perf_counter() - began) / DRAWS * 1e6)
    return statistics.median(times), min(times), max(times)


def line(name: str, tree: Any, kept: int) -> None:
    """Measure and print one tree."""
    middle, least, most = micros(lambda seed: tree.draw(DRAWN, seed))
    print(f"{name:40} {middle:9.0f} us ({least:.0f} to {most:.0f}), coordinator {kept:,} bytes")


def main() -> None:
    """All sizes up to the largest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=7, help="powers of 10 up to this one")
    parser.add_argument("--ray", type=int, default=0, help="shards on a local Ray cluster")
    options = parser.parse_args()
    if options.ray:
        import ray  # pyright: ignore[reportMissingImports]

        ray.init(address="local", num_cpus=options.ray, include_dashboard=False)
    for power in range(6, options.largest + 1):
        weights = np.random.default_rng(0).uniform(0.5, 1.5, 10**power)
        single = SumTree(weights)
        expected = single.draw(DRAWN, 1)
        line(f"10^{power} units, one tree", single, single._nodes.nbytes)
        del single
        for shards in SHARDS:
            tree = ShardedTree(weights, shards=shards)
            assert np.array_equal(tree.draw(DRAWN, 1)[0], expected[0])
            line(f"10^{power} units, {tree.num_shards} shards", tree, tree._top.nbytes)
            del tree
        if options.ray:
            tree = ShardedTree(weights, shards=options.ray, **on_ray())
            assert np.array_equal(tree.draw(DRAWN, 1)[0], expected[0])
            line(f"10^{power} units, {options.ray} Ray actors", tree, tree._top.nbytes)


if __name__ == "__main__":
    main()
