"""MaxPool2d(2) with the ReLU before or after it in one pass, compiled by Numba.

PyTorch notes the place of every largest number in eight bytes and reads all numbers again for the
ReLU. Here a byte per window says which of its four numbers was taken, or that the ReLU cut it off:
less memory goes back and forth. The numbers are the same.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from isfed.base.jit import compiled, inlined
from isfed.torch.fast_convolution import channels_last, pair
from isfed.torch.fast_layers import UnfitError

CHANNELS = 16  # the fewest that the compiler makes vectors of
CUT = 4  # the place of a number that the ReLU made 0
KINDS = {torch.float32: np.float32, torch.float64: np.float64}


@inlined
def _larger(value, best):
    """Whether PyTorch would take `value`: the first of equal numbers stays, and NaN wins."""
    return (value > best) | (value != value)


@compiled
def _take(x, low, out, places):
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
def _give_back(slope, places, out):
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


def _array(x: Tensor) -> np.ndarray:
    """The numbers of a tensor with its channels last."""
    return channels_last(x).permute(0, 2, 3, 1).numpy()


class Halve:
    """The largest number of every 2 x 2 window, and max(., 0) of it where there is a ReLU."""

    makes_new = True
    relu = False
    places: np.ndarray | None = None
    before: Tensor | None = None

    @staticmethod
    def fits(layer: nn.MaxPool2d, channels: int) -> bool:
        """Whether a layer takes windows of 2 x 2, next to each other, and no part of one.

        With fewer channels than the bytes of a vector it would be slower than PyTorch.
        """
        if channels < CHANNELS:
            return False
        how = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        return [pair(value) for value in how] == [[2, 2], [2, 2], [0, 0], [1, 1]] and (
            not layer.ceil_mode
        )

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4 or min(x.shape[2:]) < 2 or x.dtype not in KINDS:
            raise UnfitError
        count, channels, high, wide = self.shape = x.shape
        shape = (count, high // 2, wide // 2, channels)
        # Memory is kept for the next step where nobody else sees it: the system is slow to give
        # large pieces.
        if self.places is None or self.places.shape != shape:
            self.places = np.empty(shape, dtype=np.uint8)
        low = KINDS[x.dtype](0.0 if self.relu else np.nan)  # nothing is below NaN
        out = x.new_empty(shape)
        _take(_array(x), low, out.numpy(), self.places)
        return out.permute(0, 3, 1, 2)

    def backward(self, slope: Tensor, first: bool) -> Tensor:
        if self.before is None or self.before.shape != self.shape:
            # A last row or column that belongs to no window stays 0.
            self.before = channels_last(slope.new_zeros(self.shape))
        _give_back(_array(slope), self.places, _array(self.before))
        return self.before
