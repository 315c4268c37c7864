"""The squared norm of every example's gradient, layer by layer, during one backward pass.

A rule gets a layer, its input and the gradient of the loss in its output, and returns for every
example the squared norm of the gradient in the layer's own parameters. Examples must be along the
first axis.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Found(NamedTuple):
    """What a rule found in one layer."""

    squares: Tensor  # (B,)
    gradients: dict[Tensor, Tensor]  # of the whole batch, where they cost nothing more


Rule = Callable[[nn.Module, Tensor, Tensor], Found]


def _squares(rows: Tensor) -> Tensor:
    """The squared length of every example's part of a tensor."""
    flat = rows.reshape(len(rows), -1)
    return torch.linalg.vecdot(flat, flat)


def _by_gram(rows: int, columns: int, places: int) -> bool:
    """Whether sum_ts (left_t . left_s) (right_t . right_s) is cheaper than the product itself."""
    return places * (rows + columns) < rows * columns


def _product_squares(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor | None]:
    """|sum_t left[n, :, t] right[n, :, t]^T|^2 for every n, and the products if they were made."""
    rows, columns, places = left.shape[1], right.shape[1], left.shape[2]
    if places == 1:
        return _squares(left) * _squares(right), None
    if _by_gram(rows, columns, places):
        gram = left.transpose(1, 2) @ left
        gram *= right.transpose(1, 2) @ right
        return gram.sum(dim=(1, 2)), None
    product = left @ right.transpose(1, 2)
    return _squares(product), product


def _trained(param: Tensor | None) -> bool:
    return param is not None and param.requires_grad


def _linear(layer: nn.Module, x: Tensor, g: Tensor) -> Found:
    """weight: sum over places of g x^T; bias: sum over places of g."""
    assert isinstance(layer, nn.Linear)
    if x.dim() == 2:
        scale = _squares(x) * layer.weight.requires_grad + _trained(layer.bias)
        return Found(_squares(g) * scale, {})
    x, g = x.flatten(1, -2), g.flatten(1, -2)  # (B, places, ...)
    total = g.new_zeros(len(g))
    if layer.weight.requires_grad:
        total += _product_squares(g.transpose(1, 2), x.transpose(1, 2))[0]
    if _trained(layer.bias):
        total += _squares(g.sum(1))
    return Found(total, {})


Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def _patches(layer: Convolution, x: Tensor) -> Tensor:
    """What every place of the output sees: (B, groups, numbers per place, places)."""
    axes = len(layer.kernel_size)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = functional.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    # One view per axis: a window of `kernel` numbers, `dilation` apart, every `stride`. Copying
    # the views is several times faster than `functional.unfold`.
    for axis, (k, s, d) in enumerate(
        zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    ):
        x = x.unfold(2 + axis, d * (k - 1) + 1, s)[..., ::d]
    windows = range(2 + axes, 2 + 2 * axes)
    x = x.movedim(tuple(windows), tuple(range(2, 2 + axes)))  # (B, C, kernel ..., places ...)
    return x.reshape(len(x), layer.groups, -1, x.shape[2 + axes :].numel())


def saved_by_rule(layer: nn.Module, output: Tensor) -> list[Tensor]:
    """The parameters whose gradients the rule finds on its way: autograd need not."""
    if not isinstance(layer, Convolution):
        return []
    rows, columns = layer.out_channels // layer.groups, layer.weight[0].numel()
    places = output.shape[2:].numel()
    gram = places == 1 or _by_gram(rows, columns, places)
    return [] if gram or not layer.weight.requires_grad else [layer.weight]


def _convolution(layer: nn.Module, x: Tensor, g: Tensor) -> Found:
    """weight: sum over places of g patch^T, group by group; bias: sum over places of g."""
    assert isinstance(layer, Convolution)
    total, gradients = g.new_zeros(len(g)), {}
    g = g.flatten(2)  # (B, channels, places)
    if layer.weight.requires_grad:
        patches = _patches(layer, x).flatten(0, 1)
        channels = g.reshape(len(patches), -1, g.shape[-1])
        squares, product = _product_squares(channels, patches)
        total += squares.view(len(g), -1).sum(1)
        if product is not None:
            gradients[layer.weight] = product.view(len(g), -1).sum(0).view_as(layer.weight)
    if _trained(layer.bias):
        total += _squares(g.sum(2))
    return Found(total, gradients)


def _embedding(layer: nn.Module, x: Tensor, g: Tensor) -> Found:
    """Places with the same word add up: sum_ts [word_t = word_s] g_t . g_s."""
    assert isinstance(layer, nn.Embedding)
    words, g = x.reshape(len(x), -1), g.reshape(len(x), -1, g.shape[-1])
    if layer.padding_idx is not None:
        g = g * (words != layer.padding_idx).unsqueeze(2)
    same = words.unsqueeze(2) == words.unsqueeze(1)
    return Found(((g @ g.transpose(1, 2)) * same).sum(dim=(1, 2)), {})


def _affine(layer: nn.Module, normal: Tensor, g: Tensor, axes: tuple[int, ...]) -> Found:
    """y = normal * weight + bias, both summed over `axes`."""
    total = g.new_zeros(len(g))
    for param, gradient in ((layer.weight, g * normal), (layer.bias, g)):
        if isinstance(param, Tensor) and param.requires_grad:
            total += _squares(gradient.sum(axes) if axes else gradient)
    return Found(total, {})


def _layer_norm(layer: nn.Module, x: Tensor, g: Tensor) -> Found:
    assert isinstance(layer, nn.LayerNorm)
    normal = functional.layer_norm(x, list(layer.normalized_shape), eps=layer.eps)
    between = tuple(range(1, x.dim() - len(layer.normalized_shape)))
    return _affine(layer, normal, g, between)


def _group_norm(layer: nn.Module, x: Tensor, g: Tensor) -> Found:
    assert isinstance(layer, nn.GroupNorm)
    normal = functional.group_norm(x, layer.num_groups, eps=layer.eps)
    return _affine(layer, normal, g, tuple(range(2, x.dim())))


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
}


def rule_of(layer: nn.Module) -> Rule | None:
    """The rule of a layer, None if there is none; a subclass may compute something else."""
    odd = isinstance(layer, nn.Embedding) and (
        layer.scale_grad_by_freq or layer.max_norm is not None or layer.sparse
    )
    return None if odd else RULES.get(type(layer))
