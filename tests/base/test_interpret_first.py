"""Small draws are run by Python: nothing is compiled, and every bit is that of compiled code."""

import os
import subprocess
import sys

import numpy as np
import pytest

from isfed.base.interpret_first import MOST_WORK, InterpretFirst, interpreted
from isfed.base.jit import compiled
from isfed.base.random_streams import Stream, fill_uniform, start
from isfed.sampling import score_table as table
from isfed.sampling import table_draws
from isfed.sampling.designs import LocalPivotal, inclusion_probabilities
from isfed.sampling.designs.cube import _fly
from isfed.sampling.designs.local_pivotal import _fight
from isfed.sampling.designs.rejective import _draw_sampford
from isfed.sampling.designs.systematic import _draw_once

CODES = (table_draws.SYSTEMATIC, table_draws.DEVILLE, table_draws.HARTLEY_RAO)


def both(function, *args):
    """What Python and compiled code return, and what they leave in their arrays."""
    copies = [[a.copy() if isinstance(a, np.ndarray) else a for a in args] for _ in range(2)]
    with np.errstate(over="ignore"):
        results = [
            run(*given)
            for run, given in zip((interpreted(function), function), copies, strict=True)
        ]
    for one, two in zip(*copies, strict=True):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("seed", range(30))
def test_python_and_compiled_code_agree_bit_for_bit(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 120))
    weights = rng.lognormal(0.0, 1.0 + seed % 3, count)
    weights[rng.random(count) < 0.1 * (seed % 4)] = 0.0
    weights[0] = 1.0 + 1e6 * (seed % 2)
    num = int(rng.integers(1, np.count_nonzero(weights) + 1))
    state = Stream(seed).state
    both(table.cap_inclusion, weights, count, num)
    for code in CODES:
        both(_draw_once, weights, num, code, state)
    inclusion = inclusion_probabilities(weights, num)
    points = rng.normal(size=(count, 2))
    both(_fight, inclusion, points, LocalPivotal(points).near, state)
    both(_fly, rng.normal(size=(3, count)), inclusion, rng.random(count))
    chance = np.minimum(weights / weights.sum(), 0.5)
    both(_draw_sampford, np.cumsum(chance), np.cumsum(chance / (1 - chance)), 2, 1000, state)
    both(start, state, np.uint64(seed), seed, -1)
    both(fill_uniform, state, np.empty(9), 9)


def test_after_enough_work_it_is_compiled():
    @compiled
    def double(count):
        return 2 * count

    lit = InterpretFirst(double, lambda count: MOST_WORK // 3)
    assert [lit(4), lit(4)] == [8, 8]
    assert not double.overloads
    assert [lit(4), lit(4)] == [8, 8]
    assert len(double.overloads) == 1


def test_small_draws_compile_nothing():
    code = """
import numpy as np
from isfed.base.progress import seconds_compiling
from isfed.sampling.designs import *
pi = inclusion_probabilities(np.arange(1.0, 51.0), 5)
points = np.arange(50.0)
for design in (Deville(), Systematic(), HartleyRao(), Sampford(), LocalPivotal(points), Poisson(),
               WithReplacement(), ConditionalPoisson(), Brewer(), Tille(), Cube(points)):
    for seed in range(5):
        design.draw(pi, seed)
tree = SumTree(np.arange(1.0, 51.0))
for seed in range(5):
    tree.update(*tree.draw(5, seed))
print(seconds_compiling())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "0.0"
