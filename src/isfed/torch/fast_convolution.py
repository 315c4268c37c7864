"""Convolutions and pooling of a chain; both keep their channels last, which is faster."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isfed.torch.fast_layers import UnfitError
from isfed.torch.norm_hooks import RULES

_aten: Any = torch.ops.aten
_convolution_backward: Any = _aten.convolution_backward.default
_pool: Any = _aten.max_pool2d_with_indices.default
_pool_backward: Any = _aten.max_pool2d_with_indices_backward.default


def channels_last(x: Tensor) -> Tensor:
    """The same numbers, those of one place next to each other."""
    if x.shape[1] > 1:
        return x.contiguous(memory_format=torch.channels_last)
    # One channel is in both orders; its strides tell the convolution which one to go on with.
    high, wide = x.shape[2:]
    return x.contiguous().as_strided(x.shape, (high * wide, 1, wide, 1))


class Conv2d:
    """A convolution with zeros around."""

    makes_new = True

    def __init__(self, layer: nn.Conv2d, gradients: list[Tensor]) -> None:
        self.weight = layer.weight.detach()
        self.bias = None if layer.bias is None else layer.bias.detach()
        self.gradients = gradients
        self.layer = layer
        self.known = False  # whether `squares` found the gradient of the weight
        (high, wide), self.groups = pair(layer.padding), layer.groups
        self.how = (layer.stride, (high, wide), layer.dilation)
        # Large kernels are faster on an input that has its zeros already (tried with AVX2: 5 x 5
        # and 32 outputs or more); small ones do not earn back the copy.
        pays = min(layer.kernel_size) >= 5 and layer.out_channels >= 32 and layer.in_channels > 1
        self.around = (wide, wide, high, high) if pays and high + wide > 0 else None

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            raise UnfitError
        self.x, self.ordered = channels_last(x), channels_last(self.weight)
        if self.around is None:
            return functional.conv2d(self.x, self.ordered, self.bias, *self.how, self.groups)
        x, (stride, _, dilation) = functional.pad(self.x, self.around), self.how
        return functional.conv2d(x, self.ordered, self.bias, stride, 0, dilation, self.groups)

    def squares(self, slope: Tensor) -> Tensor:
        # The rule multiplies numbers of one channel, so those go next to each other.
        found = RULES[nn.Conv2d](self.layer, self.x.contiguous(), slope.contiguous())
        for gradient in found.gradients.values():
            self.gradients[0].copy_(gradient)
        self.known = bool(found.gradients)
        return found.squares

    def backward(self, slope: Tensor, first: bool) -> Tensor:
        slope, asked, self.known = channels_last(slope), not self.known, False
        before, gradient, _ = _convolution_backward(
            slope, self.x, self.ordered, None, *self.how,
            False, [0, 0], self.groups, [not first, asked, False],
        )  # fmt: skip
        if asked:
            self.gradients[0].copy_(gradient)
        if self.bias is not None:  # faster than within the call above
            torch.sum(slope, (0, 2, 3), out=self.gradients[1])
        return slope if first else before


class MaxPool2d:
    """The largest number of every window."""

    makes_new = True

    def __init__(self, layer: nn.MaxPool2d) -> None:
        kernel, stride, padding, dilation = map(
            pair, (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        )
        self.how = (kernel, stride, padding, dilation, layer.ceil_mode)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            raise UnfitError
        self.x = x
        largest, self.places = _pool(x, *self.how)
        return largest

    def backward(self, slope: Tensor, first: bool) -> Tensor:
        slope = channels_last(slope) if slope.shape[1] > 1 else slope
        return _pool_backward(slope, self.x, *self.how, self.places)


def pair(value: int | Sequence[int]) -> list[int]:
    """One number for both axes, or a number for each."""
    return [value, value] if isinstance(value, int) else list(value)
