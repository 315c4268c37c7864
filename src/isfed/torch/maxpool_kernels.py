"""The loops of max pooling over windows of 2 x 2 with a ReLU, compiled by Numba."""

from __future__ import annotations

import numpy as np

from isfed.base.jit import compiled, jit_inline

CUT = 4  # the place of a number that the ReLU made 0


@jit_inline
def _larger(value, best):
    """Whether PyTorch would take `value`: the first of equal numbers stays, and NaN wins."""
    return (value > best) | (value != value)


@compiled
def take_largest(x, low, out, places):
    """The largest of every 2 x 2 window of x, (B, H, W, C), or 0 if it is not above `low`."""
    for n in range(out.shape[0]):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                for c in range(out.shape[3]):  # no branches: the compiler makes vectors of it
                    best, place = x[n, 2 * i, 2 * j, c], np.uint8(0)
                    value = x[n, 2 * i, 2 * j + 1, c]
                    better = _larger(value, best)
                    best, place = value if better else best, np.uint8(1) if better else place
                    value = x[n, 2 * i + 1, 2 * j, c]
                    better = _larger(value, best)
                    best, place = value if better else best, np.uint8(2) if better else place
                    value = x[n, 2 * i + 1, 2 * j + 1, c]
                    better = _larger(value, best)
                    best, place = value if better else best, np.uint8(3) if better else place
                    cut = best <= low
                    out[n, i, j, c] = x.dtype.type(0) if cut else best
                    places[n, i, j, c] = np.uint8(CUT) if cut else place


@compiled
def give_back(slope, places, out):
    """Every window's gradient to the number that was taken, 0 to the others."""
    zero = out.dtype.type(0)
    for n in range(slope.shape[0]):
        for i in range(slope.shape[1]):
            for j in range(slope.shape[2]):
                for place in range(4):
                    row, column = 2 * i + place // 2, 2 * j + place % 2
                    for c in range(slope.shape[3]):
                        taken = places[n, i, j, c] == place
                        out[n, row, column, c] = slope[n, i, j, c] if taken else zero
