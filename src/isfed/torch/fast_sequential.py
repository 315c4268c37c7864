"""A sequential network without autograd: the gradient of a batch, layer by layer, by hand.

Autograd and the calls of modules take longer than the arithmetic of a small network. A network
that is an `nn.Sequential` of known layers, under cross-entropy, needs neither; every other one
goes through autograd. Linear layers give the same bits as autograd. Convolutions and pooling
keep their channels last, which is faster and rounds differently.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isfed.torch.fast_convolution import Conv2d, MaxPool2d
from isfed.torch.fast_layers import Linear, ReLU, Reshape, Tanh, UnfitError
from isfed.torch.flat_module import FlatModule
from isfed.torch.maxpool_relu import Halve

_aten: Any = torch.ops.aten
_log_softmax_backward: Any = _aten._log_softmax_backward_data.default
_nll_backward: Any = _aten.nll_loss_backward.default


class Chain:
    """The layers of one network, with `gradient`, the vector that a backward pass fills."""

    def __init__(self, flat: FlatModule, layers: list[nn.Module], ignored: int) -> None:
        """`ignored` is the label of the examples that cross-entropy leaves out."""
        self.ignored = ignored
        self.dtype = flat.dtype
        self.gradient = torch.zeros_like(flat.flat)
        self.gradients = flat.views_of(self.gradient)
        self.links: list[Any] = []
        at, channels = 0, 0
        for layer in layers:
            count = len(list(layer.parameters(recurse=False)))
            channels = layer.out_channels if isinstance(layer, nn.Conv2d) else channels
            _append(self.links, _link(layer, self.gradients[at : at + count], channels))
            at += count
        for one, other in pairwise(self.links):
            if isinstance(other, ReLU):
                other.in_place = one.makes_new
        # Nobody asks for the gradient of what comes before.
        self.first = next(i for i, link in enumerate(self.links) if hasattr(link, "gradients"))
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
        """Whether the gradient of a batch can be found this way."""
        return y.dim() == 1 and y.dtype == torch.int64 and self.takes_rows(x)

    def takes_rows(self, x: Tensor) -> bool:
        """Whether rows can go forward this way."""
        if x.dtype != self.dtype or any(self.hooks) or torch.is_autocast_enabled("cpu"):
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

    def forget(self) -> None:
        """Let go of what the last forward pass left for a backward pass."""
        for link in self.links:
            for name in ("x", "result", "places", "before"):
                link.__dict__.pop(name, None)

    def equal_shares(self, count: int) -> Tensor:
        """1 / B of every example."""
        if count not in self.shares:
            self.shares[count] = torch.ones(count, dtype=self.dtype) / count
        return self.shares[count]

    def batch(
        self, x: Tensor, y: Tensor, share: Tensor | None, squares: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The mean loss and its gradient in the outputs; `gradient` has that of the model.

        `share` is what every example's loss counts, 1 / B each if it is None. `squares`, (B,),
        is increased by the squared norm of every example's part of the gradient.
        """
        with torch.no_grad():
            logs = torch.log_softmax(self.outputs(x), 1)
            values = functional.nll_loss(logs, y, ignore_index=self.ignored, reduction="none")
            if share is None:
                mean, share = values.mean(), self.equal_shares(len(x))
            else:
                mean = torch.dot(values, share)
            slope = _nll_backward(share, logs, y, None, 0, self.ignored, self.zero)
            parts: list[Tensor] = []
            slopes = slope = _log_softmax_backward(slope, logs, 1, logs.dtype)
            for i in range(len(self.links) - 1, self.first - 1, -1):
                link = self.links[i]
                if squares is not None and hasattr(link, "gradients"):
                    parts.append(link.squares(slope))
                slope = link.backward(slope, i == self.first)
            for part in reversed(parts):  # the order in which autograd's are added
                squares += part
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


def _link(layer: nn.Module, gradients: list[Tensor], channels: int) -> Any:
    if isinstance(layer, nn.Linear):
        return Linear(layer, gradients)
    if isinstance(layer, nn.Conv2d):
        return Conv2d(layer, gradients)
    if isinstance(layer, nn.MaxPool2d):
        return Halve() if Halve.fits(layer, channels) else MaxPool2d(layer)
    plain = {nn.ReLU: ReLU, nn.Tanh: Tanh}
    return plain[type(layer)]() if type(layer) in plain else Reshape(layer)


def _append(links: list[Any], link: Any) -> None:
    """Add a link; pooling goes before a ReLU, or takes it over.

    The largest of max(x, 0) is max(largest x, 0), from the same place.
    """
    last = links[-1] if links else None
    if isinstance(link, ReLU) and isinstance(last, Halve):
        last.relu = True
    elif isinstance(link, Halve) and isinstance(last, ReLU):
        link.relu, links[-1] = True, link
    elif isinstance(link, MaxPool2d) and isinstance(last, ReLU):
        links.insert(len(links) - 1, link)
    else:
        links.append(link)
