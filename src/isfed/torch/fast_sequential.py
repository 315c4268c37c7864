"""The gradient of a batch without autograd: an `nn.Sequential`, layer by layer, written by hand.

Networks of known layers under cross-entropy need neither autograd nor calls of modules, which take
longer than the arithmetic of a small network. Linear layers give the bits of autograd. Convolutions
and pooling keep their channels last, which is faster and rounds differently.

Of every layer, `forward` keeps what `backward` needs. `backward` gets the gradient in the layer's
output, fills the gradients of the layer's own parameters and returns the gradient in its input, or
anything if the layer is the `first` that learns. `squares`, of layers that learn, may come before
`backward`: the squared norm of every example's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from isfed.base.jit import compiled, jit_inline
from isfed.torch.example_norms import RULES
from isfed.torch.flat_module import FlatModule, channels_last, hook_tables, image_array, layers_of

_aten: Any = torch.ops.aten
LEAST_CHANNELS = 16  # the fewest that the compiler makes vectors of
CUT = 4  # the place of a number in its window of 2 x 2 that a ReLU made 0
NUMPY_TYPES = {torch.float32: np.float32, torch.float64: np.float64}


class FastSequential:
    """The layers of one network, with `gradient`, the vector that a backward pass fills."""

    def __init__(self, flat: FlatModule, ignored: int) -> None:
        self.ignored, self.dtype = ignored, flat.dtype  # cross-entropy leaves out that label
        self.gradient = torch.zeros_like(flat.flat)
        self.gradients = flat.views_of(self.gradient)
        self.layers: list[Any] = []
        at, channels = 0, 0
        for layer in layers_of(flat.module):
            count = len(list(layer.parameters(recurse=False)))
            channels = layer.out_channels if isinstance(layer, nn.Conv2d) else channels
            self._append(_fast_layer(layer, self.gradients[at : at + count], channels))
            at += count
        for one, other in pairwise(self.layers):
            other.in_place = one.makes_new  # of use to a ReLU
        # The gradient in the input of the first layer that learns is of no use.
        self.first = next(i for i, layer in enumerate(self.layers) if hasattr(layer, "gradients"))
        self.fits: dict[torch.Size, bool] = {}
        self.shares: dict[int, Tensor] = {}
        self.zero = torch.zeros((), dtype=self.dtype)
        self.hooks = list(hook_tables(flat.module))

    @classmethod
    def of(cls, flat: FlatModule, loss: Any) -> FastSequential | None:
        """The fast layers of a network, or None if only autograd can serve it."""
        if type(loss) is not nn.CrossEntropyLoss or loss.weight is not None:
            return None
        owned = [id(p) for layer in layers_of(flat.module) for p in layer.parameters(recurse=False)]
        only = flat.trained == flat.size and owned == [id(p) for p in flat.params]
        if loss.label_smoothing != 0.0 or flat.device.type != "cpu" or not only:
            return None
        try:
            return cls(flat, loss.ignore_index)
        except UnfitError:
            return None

    def _append(self, layer: Any) -> None:
        """Add a layer; pooling goes before a ReLU, or takes it over.

        The largest of max(x, 0) is max(largest x, 0), from the same place.
        """
        last = self.layers[-1] if self.layers else None
        if isinstance(layer, FastReLU) and isinstance(last, MaxPoolReLU):
            last.relu = True
        elif isinstance(layer, MaxPoolReLU) and isinstance(last, FastReLU):
            layer.relu, self.layers[-1] = True, layer
        elif isinstance(layer, FastMaxPool2d) and isinstance(last, FastReLU):
            self.layers.insert(len(self.layers) - 1, layer)
        else:
            self.layers.append(layer)

    def takes(self, x: Tensor, y: Tensor) -> bool:
        """Whether the gradient of a batch can be computed by hand."""
        return y.dim() == 1 and y.dtype == torch.int64 and self.takes_rows(x)

    def takes_rows(self, x: Tensor) -> bool:
        """Whether rows can go forward by hand."""
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
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def forget(self) -> None:
        """Release what the last forward pass kept for a backward pass."""
        for layer in self.layers:
            for name in ("x", "result", "places", "before"):
                layer.__dict__.pop(name, None)

    def batch(
        self, x: Tensor, y: Tensor, share: Tensor | None, squares: Tensor | None = None,
        step: float | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The mean loss and its gradient in the outputs; `gradient` has that of the model.

        `share`, (B,), is the weight of every example's loss, 1 / B unless given. `squares`, (B,),
        is increased by the squared norm of every example's part of the gradient. With a `step` the
        model moves by it at once and `gradient` is not filled: a third less memory is read.
        """
        with torch.no_grad():
            logs = torch.log_softmax(self.outputs(x), 1)
            values = functional.nll_loss(logs, y, ignore_index=self.ignored, reduction="none")
            if share is not None:
                mean = torch.dot(values, share)
            else:
                mean, share = values.mean(), self.shares.get(len(x))
                if share is None:
                    share = self.shares[len(x)] = torch.ones(len(x), dtype=self.dtype) / len(x)
            nll_backward = _aten.nll_loss_backward.default
            slope = nll_backward(share, logs, y, None, 0, self.ignored, self.zero)
            parts: list[Tensor] = []
            slopes = slope = _aten._log_softmax_backward_data.default(slope, logs, 1, logs.dtype)
            for i in range(len(self.layers) - 1, self.first - 1, -1):
                layer = self.layers[i]
                if squares is not None and hasattr(layer, "gradients"):
                    parts.append(layer.squares(slope))
                slope = layer.backward(slope, i == self.first, step)
            for part in reversed(parts):  # the order in which autograd's are added
                squares += part  # pyright: ignore[reportOperatorIssue]
        return mean, slopes


def _fast_layer(layer: Any, gradients: list[Tensor], channels: int) -> Any:
    kind = type(layer)  # subclasses may do anything
    if kind is nn.Linear:
        return FastLinear(layer, gradients)
    if kind is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        return FastConv2d(layer, gradients)
    if kind is nn.MaxPool2d and not layer.return_indices:
        pool = FastMaxPool2d(layer)  # or, where it is faster, with the ReLU in one pass
        return MaxPoolReLU() if channels >= LEAST_CHANNELS and pool.how == MaxPoolReLU.how else pool
    if kind in (nn.ReLU, nn.Tanh):
        return FastReLU() if kind is nn.ReLU else FastTanh()
    if kind is nn.Unflatten or (kind is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)):
        return FastReshape(layer)
    raise UnfitError


class UnfitError(Exception):
    """A layer that has no fast one, or an input that a fast layer does not take."""


class FastReshape:
    """Flatten and Unflatten: other shapes of the same numbers."""

    makes_new = False  # whether what follows may change the output

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape
        return self.layer.forward(x)

    def backward(self, slope: Tensor, first: bool, step: float | None = None) -> Tensor:
        return slope.reshape(self.shape)


class FastLinear:
    """x W' + b of a matrix x."""

    makes_new = True

    def __init__(self, layer: nn.Linear, gradients: list[Tensor]) -> None:
        self.layer, self.gradients, self.weight = layer, gradients, layer.weight.detach()
        self.transposed = self.weight.t()
        self.bias = None if layer.bias is None else layer.bias.detach()
        # A product can round differently where its memory is not aligned, as autograd's is.
        self.aligned = gradients[0].data_ptr() % 64 == 0

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            raise UnfitError
        self.x = x
        if self.bias is None:
            return torch.mm(x, self.transposed)
        return torch.addmm(self.bias, x, self.transposed)

    def squares(self, slope: Tensor) -> Tensor:
        return RULES[nn.Linear](self.layer, self.x, slope)[0]

    def backward(self, slope: Tensor, first: bool, step: float | None = None) -> Tensor:
        before = slope if first else torch.mm(slope, self.weight)
        if step is not None:
            self.weight.addmm_(slope.t(), self.x, alpha=-step)
            if self.bias is not None:
                self.bias.add_(torch.sum(slope, 0), alpha=-step)
            return before
        if self.aligned:
            torch.mm(slope.t(), self.x, out=self.gradients[0])
        else:
            self.gradients[0].copy_(torch.mm(slope.t(), self.x))
        if self.bias is not None:
            torch.sum(slope, 0, out=self.gradients[1])
        return before


class FastReLU:
    """max(x, 0), in the place of x where x is not needed any more."""

    makes_new = False
    in_place = False

    def forward(self, x: Tensor) -> Tensor:
        self.result = x.relu_() if self.in_place else x.relu()
        return self.result

    def backward(self, slope: Tensor, first: bool, step: float | None = None) -> Tensor:
        return _aten.threshold_backward.default(slope, self.result, 0)


class FastTanh:
    """The hyperbolic tangent."""

    makes_new = False

    def forward(self, x: Tensor) -> Tensor:
        self.result = x.tanh()
        return self.result

    def backward(self, slope: Tensor, first: bool, step: float | None = None) -> Tensor:
        return _aten.tanh_backward(slope, self.result)


def _pair(value: int | Sequence[int]) -> list[int]:
    """One number for both axes, or a number for each."""
    return [value, value] if isinstance(value, int) else list(value)


class FastConv2d:
    """A convolution with zeros around."""

    makes_new = True

    def __init__(self, layer: nn.Conv2d, gradients: list[Tensor]) -> None:
        self.layer, self.gradients, self.weight = layer, gradients, layer.weight.detach()
        self.bias = None if layer.bias is None else layer.bias.detach()
        self.known = False  # whether `squares` computed the gradient of the weight
        padding: Any = layer.padding  # not a string, `_fast_layer` sees to it
        (high, wide), self.groups = _pair(padding), layer.groups
        self.how = (layer.stride, (high, wide), layer.dilation)
        # Large kernels are faster on an input that has its zeros already (tried with AVX2: 5 x 5
        # and 32 outputs or more); small ones do not earn back the copy.
        pays = min(layer.kernel_size) >= 5 and layer.out_channels >= 32 and layer.in_channels > 1
        self.zeros = (wide, wide, high, high) if pays and high + wide > 0 else None

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            raise UnfitError
        self.x, self.ordered = channels_last(x), channels_last(self.weight)
        x, (stride, padding, dilation) = self.x, self.how
        if self.zeros is not None:
            x, padding = functional.pad(x, self.zeros), 0
        return functional.conv2d(x, self.ordered, self.bias, stride, padding, dilation, self.groups)

    def squares(self, slope: Tensor) -> Tensor:
        # The rule multiplies numbers of one channel, so those go next to each other.
        squares, gradients = RULES[nn.Conv2d](self.layer, self.x.contiguous(), slope.contiguous())
        for gradient in gradients.values():
            self.gradients[0].copy_(gradient)
        self.known = bool(gradients)
        return squares

    def backward(self, slope: Tensor, first: bool, step: float | None = None) -> Tensor:
        slope, asked, self.known = channels_last(slope), not self.known, False
        before, gradient, _ = _aten.convolution_backward.default(
            slope, self.x, self.ordered, None, *self.how,
            False, [0, 0], self.groups, [not first, asked, False],
        )  # fmt: skip
        if asked:
            self.gradients[0].copy_(gradient)
        if self.bias is not None:  # faster than within the call above
            torch.sum(slope, (0, 2, 3), out=self.gradients[1])
        if step is not None:
            self.weight.add_(self.gradients[0], alpha=-step)
            if self.bias is not None:
                self.bias.add_(self.gradients[1], alpha=-step)
        return slope if first else before


class FastMaxPool2d:
    """The largest number of every window."""

    makes_new = True

    def __init__(self, layer: nn.MaxPool2d) -> None:
        how = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        self.how = (*map(_pair, how), layer.ceil_mode)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            raise UnfitError
        self.x = x
        largest, self.places = _aten.max_pool2d_with_indices.default(x, *self.how)
        return largest

    def backward(self, slope: Tensor, first: bool, step: float | None = None) -> Tensor:
        slope = channels_last(slope) if slope.shape[1] > 1 else slope
        return _aten.max_pool2d_with_indices_backward(slope, self.x, *self.how, self.places)


class MaxPoolReLU:
    """MaxPool2d(2) with the ReLU before or after it, if there is one, in one pass of Numba.

    PyTorch notes the place of a largest number in eight bytes and reads all again for the ReLU. A
    byte per window says which of the four was taken, if any: less memory goes back and forth.
    """

    how = ([2, 2], [2, 2], [0, 0], [1, 1], False)  # windows of 2 x 2, and no part of one
    makes_new = True
    relu = False
    places: np.ndarray | None = None
    before: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4 or min(x.shape[2:]) < 2 or x.dtype not in NUMPY_TYPES:
            raise UnfitError
        count, channels, high, wide = self.shape = x.shape
        shape = (count, high // 2, wide // 2, channels)
        # The memory is kept for the next step: the system is slow to give large pieces.
        if self.places is None or self.places.shape != shape:
            self.places = np.empty(shape, dtype=np.uint8)
        low = NUMPY_TYPES[x.dtype](0.0 if self.relu else np.nan)  # nothing is below NaN
        out = x.new_empty(shape)
        take_largest(image_array(x), low, out.numpy(), self.places)
        return out.permute(0, 3, 1, 2)

    def backward(self, slope: Tensor, first: bool, step: float | None = None) -> Tensor:
        if self.before is None or self.before.shape != self.shape:
            # A last row or column that belongs to no window stays 0.
            self.before = channels_last(slope.new_zeros(self.shape))
        give_back(image_array(slope), self.places, image_array(self.before))
        return self.before


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
