"""A sequential network without autograd: the gradient of a batch, layer by layer, by hand.

Autograd and the calls of modules take longer than the arithmetic of a small network. A network
that is an `nn.Sequential` of the layers below, under cross-entropy, needs neither; every other
one goes through autograd. Linear layers give the same bits as autograd. Convolutions and pooling
keep their channels last, which is faster and rounds differently.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isfed.torch.flat import FlatModule

_aten: Any = torch.ops.aten
_log_softmax_backward: Any = _aten._log_softmax_backward_data.default
_nll_backward: Any = _aten.nll_loss_backward.default
_convolution_backward: Any = _aten.convolution_backward.default
_pool: Any = _aten.max_pool2d_with_indices.default
_pool_backward: Any = _aten.max_pool2d_with_indices_backward.default
_relu_backward: Any = _aten.threshold_backward.default


class UnfitError(Exception):
    """An input that a layer by hand does not take."""


class _Reshape:
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


class _Linear:
    """x W' + b of a matrix x."""

    makes_new = True

    def __init__(self, layer: nn.Linear, gradients: list[Tensor]) -> None:
        self.weight = layer.weight.detach()
        self.turned = self.weight.t()
        self.bias = None if layer.bias is None else layer.bias.detach()
        self.gradients = gradients
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

    def backward(self, slope: Tensor, first: bool) -> Tensor:
        if self.aligned:
            torch.mm(slope.t(), self.x, out=self.gradients[0])
        else:
            self.gradients[0].copy_(torch.mm(slope.t(), self.x))
        if self.bias is not None:
            torch.sum(slope, 0, out=self.gradients[1])
        return slope if first else torch.mm(slope, self.weight)


def _channels_last(x: Tensor) -> Tensor:
    """The same numbers, those of one place next to each other."""
    if x.shape[1] > 1:
        return x.contiguous(memory_format=torch.channels_last)
    # One channel is in both orders; its strides tell the convolution which one to go on with.
    high, wide = x.shape[2:]
    return x.contiguous().as_strided(x.shape, (high * wide, 1, wide, 1))


class _Conv2d:
    """A convolution with zeros around."""

    makes_new = True

    def __init__(self, layer: nn.Conv2d, gradients: list[Tensor]) -> None:
        self.weight = layer.weight.detach()
        self.bias = None if layer.bias is None else layer.bias.detach()
        self.gradients = gradients
        self.how = (layer.stride, layer.padding, layer.dilation)
        self.groups = layer.groups

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            raise UnfitError
        self.x, self.ordered = _channels_last(x), _channels_last(self.weight)
        return functional.conv2d(self.x, self.ordered, self.bias, *self.how, self.groups)

    def backward(self, slope: Tensor, first: bool) -> Tensor:
        biased = self.bias is not None
        before, *found = _convolution_backward(
            _channels_last(slope), self.x, self.ordered, [len(self.weight)], *self.how,
            False, [0, 0], self.groups, [not first, True, biased],
        )  # fmt: skip
        for place, gradient in zip(self.gradients, found, strict=False):
            place.copy_(gradient)
        return slope if first else before


class _ReLU:
    """max(x, 0), in the place of x where nobody needs it any more."""

    makes_new = False
    in_place = False

    def forward(self, x: Tensor) -> Tensor:
        self.result = x.relu_() if self.in_place else x.relu()
        return self.result

    def backward(self, slope: Tensor, first: bool) -> Tensor:
        return _relu_backward(slope, self.result, 0)


class _Tanh:
    """The hyperbolic tangent."""

    makes_new = False

    def forward(self, x: Tensor) -> Tensor:
        self.result = x.tanh()
        return self.result

    def backward(self, slope: Tensor, first: bool) -> Tensor:
        return _aten.tanh_backward(slope, self.result)


class _MaxPool2d:
    """The largest number of every window."""

    makes_new = True

    def __init__(self, layer: nn.MaxPool2d) -> None:
        kernel, stride, padding, dilation = map(
            _pair, (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        )
        self.how = (kernel, stride, padding, dilation, layer.ceil_mode)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            raise UnfitError
        self.x = x
        largest, self.places = _pool(x, *self.how)
        return largest

    def backward(self, slope: Tensor, first: bool) -> Tensor:
        slope = _channels_last(slope) if slope.shape[1] > 1 else slope
        return _pool_backward(slope, self.x, *self.how, self.places)


def _pair(value: int | Sequence[int]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


class Chain:
    """The layers of one network, with `gradient`, the vector that a backward pass fills."""

    def __init__(self, flat: FlatModule, layers: list[nn.Module], ignored: int) -> None:
        """`ignored` is the label of the examples that cross-entropy leaves out."""
        self.ignored = ignored
        self.dtype = flat.dtype
        self.gradient = torch.zeros_like(flat.flat)
        self.gradients = flat.views_of(self.gradient)
        self.links: list[Any] = []
        at = 0
        for layer in layers:
            count = len(list(layer.parameters(recurse=False)))
            self.links.append(_link(layer, self.gradients[at : at + count]))
            at += count
        for i, (one, other) in enumerate(zip(self.links, self.links[1:], strict=False)):
            if isinstance(one, _ReLU) and isinstance(other, _MaxPool2d):
                # The largest of max(x, 0) is max(largest x, 0), from the same place.
                self.links[i], self.links[i + 1] = other, one
        for one, other in pairwise(self.links):
            if isinstance(other, _ReLU):
                other.in_place = one.makes_new
        learning = [i for i, layer in enumerate(layers) if list(layer.parameters(recurse=False))]
        self.first = learning[0]  # nobody asks for the gradient of what comes before
        self.fits: dict[torch.Size, bool] = {}
        self.shares: dict[int, Tensor] = {}
        self.zero = torch.zeros((), dtype=self.dtype)
        self.hooks = list(_hooks(flat.module))

    @classmethod
    def of(cls, flat: FlatModule, loss: Any) -> Chain | None:
        """The chain of a network, or None if only autograd can serve it."""
        if type(loss) is not nn.CrossEntropyLoss or loss.weight is not None:
            return None
        if loss.label_smoothing != 0.0 or flat.device.type != "cpu" or flat.trained < flat.size:
            return None
        layers = list(_layers(flat.module))
        owned = [p for layer in layers for p in layer.parameters(recurse=False)]
        same = len(owned) == len(flat.params) and all(
            one is other for one, other in zip(owned, flat.params, strict=True)
        )
        if not same or not all(_known(layer) for layer in layers):
            return None
        return cls(flat, layers, loss.ignore_index)

    def takes(self, x: Tensor, y: Tensor) -> bool:
        """Whether a batch can go this way."""
        if x.dtype != self.dtype or y.dim() != 1 or y.dtype != torch.int64:
            return False
        if any(self.hooks) or torch.is_autocast_enabled("cpu"):
            return False
        shape = x.shape[1:]
        if shape not in self.fits:
            try:
                with torch.no_grad():
                    self.fits[shape] = self.outputs(x).dim() == 2
            except (UnfitError, RuntimeError):  # autograd will say what is wrong
                self.fits[shape] = False
        return self.fits[shape]

    def outputs(self, x: Tensor) -> Tensor:
        """The forward pass."""
        for link in self.links:
            x = link.forward(x)
        return x

    def equal_shares(self, count: int) -> Tensor:
        """1 / B of every example."""
        if count not in self.shares:
            self.shares[count] = torch.ones(count, dtype=self.dtype) / count
        return self.shares[count]

    def batch(self, x: Tensor, y: Tensor, share: Tensor | None) -> tuple[Tensor, Tensor]:
        """The mean loss and its gradient in the outputs; `gradient` has that of the model.

        `share` is what every example's loss counts, 1 / B each if it is None.
        """
        with torch.no_grad():
            logs = torch.log_softmax(self.outputs(x), 1)
            values = functional.nll_loss(logs, y, ignore_index=self.ignored, reduction="none")
            if share is None:
                mean, share = values.mean(), self.equal_shares(len(x))
            else:
                mean = torch.dot(values, share)
            slope = _nll_backward(share, logs, y, None, 0, self.ignored, self.zero)
            slopes = slope = _log_softmax_backward(slope, logs, 1, logs.dtype)
            for i in range(len(self.links) - 1, self.first - 1, -1):
                slope = self.links[i].backward(slope, i == self.first)
        return mean, slopes


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of nested `nn.Sequential`s in their order."""
    if type(module) is nn.Sequential:
        for child in module:
            yield from _layers(child)
    elif type(module) is not nn.Identity:
        yield module


def _hooks(module: nn.Module) -> Iterator[dict]:
    """Where functions are kept that are called beside the layers, now or later."""
    for layer in module.modules():
        yield from (layer._forward_hooks, layer._forward_pre_hooks)
        yield from (layer._backward_hooks, layer._backward_pre_hooks)
    for name in ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks"):
        yield getattr(nn.modules.module, f"_global_{name}")


def _known(layer: nn.Module) -> bool:
    """Whether there is a link for a layer; subclasses may do anything, so they have none."""
    if type(layer) is nn.Flatten:
        return (layer.start_dim, layer.end_dim) == (1, -1)
    if type(layer) is nn.Conv2d:
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if type(layer) is nn.MaxPool2d:
        return not layer.return_indices
    return type(layer) in (nn.Linear, nn.ReLU, nn.Tanh, nn.Unflatten)


def _link(layer: nn.Module, gradients: list[Tensor]) -> Any:
    if isinstance(layer, nn.Linear):
        return _Linear(layer, gradients)
    if isinstance(layer, nn.Conv2d):
        return _Conv2d(layer, gradients)
    if isinstance(layer, nn.MaxPool2d):
        return _MaxPool2d(layer)
    plain = {nn.ReLU: _ReLU, nn.Tanh: _Tanh}
    return plain[type(layer)]() if type(layer) in plain else _Reshape(layer)
