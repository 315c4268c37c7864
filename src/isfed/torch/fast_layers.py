"""The layers of a chain, each forward and backward by hand: linear, pointwise, other shapes.

`forward` keeps what `backward` needs. `backward` gets the gradient in the layer's output, fills
the gradients of the layer's own parameters and returns the gradient in the layer's input, or
anything if the layer is the first that learns: nobody asks for it then. `squares` of a layer that
learns comes before `backward`, if at all: the squared norm of every example's gradient.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isfed.torch.norm_hooks import RULES

_aten: Any = torch.ops.aten
_relu_backward: Any = _aten.threshold_backward.default


class UnfitError(Exception):
    """An input that a layer by hand does not take."""


class Reshape:
    """Flatten and Unflatten: other shapes of the same numbers."""

    makes_new = False  # whether what follows may change the output

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.shape: Sequence[int] = ()

    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape
        return self.layer.forward(x)

    def backward(self, slope: Tensor, first: bool) -> Tensor:
        return slope.reshape(self.shape)


class Linear:
    """x W' + b of a matrix x."""

    makes_new = True

    def __init__(self, layer: nn.Linear, gradients: list[Tensor]) -> None:
        self.weight = layer.weight.detach()
        self.turned = self.weight.t()
        self.bias = None if layer.bias is None else layer.bias.detach()
        self.gradients = gradients
        self.layer = layer
        # What a product rounds to can depend on where in memory it goes; autograd's places are
        # aligned.
        self.aligned = gradients[0].data_ptr() % 64 == 0

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            raise UnfitError
        self.x = x
        if self.bias is None:
            return torch.mm(x, self.turned)
        return torch.addmm(self.bias, x, self.turned)

    def squares(self, slope: Tensor) -> Tensor:
        return RULES[nn.Linear](self.layer, self.x, slope).squares

    def backward(self, slope: Tensor, first: bool) -> Tensor:
        if self.aligned:
            torch.mm(slope.t(), self.x, out=self.gradients[0])
        else:
            self.gradients[0].copy_(torch.mm(slope.t(), self.x))
        if self.bias is not None:
            torch.sum(slope, 0, out=self.gradients[1])
        return slope if first else torch.mm(slope, self.weight)


class ReLU:
    """max(x, 0), in the place of x where nobody needs it any more."""

    makes_new = False
    in_place = False

    def forward(self, x: Tensor) -> Tensor:
        self.result = x.relu_() if self.in_place else x.relu()
        return self.result

    def backward(self, slope: Tensor, first: bool) -> Tensor:
        return _relu_backward(slope, self.result, 0)


class Tanh:
    """The hyperbolic tangent."""

    makes_new = False

    def forward(self, x: Tensor) -> Tensor:
        self.result = x.tanh()
        return self.result

    def backward(self, slope: Tensor, first: bool) -> Tensor:
        return _aten.tanh_backward(slope, self.result)
