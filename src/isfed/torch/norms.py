"""The squared norm of every example's gradient, layer by layer, during one backward pass.

A rule gets a layer, its input and the gradient of the loss in its output, and returns for every
example the squared norm of the gradient in the layer's own parameters. The gradient of the whole
batch is not touched. The rules need that examples are along the first axis.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Rule = Callable[[nn.Module, Tensor, Tensor], Tensor]


def _squares(rows: Tensor) -> Tensor:
    """The squared length of every example's part of a tensor."""
    flat = rows.reshape(len(rows), -1)
    return torch.linalg.vecdot(flat, flat)


def _product_squares(left: Tensor, right: Tensor) -> Tensor:
    """|sum_t left[n, :, t] right[n, :, t]^T|^2 for every n, the cheaper of two ways.

    Either the product itself, or sum_ts (left_t . left_s) (right_t . right_s).
    """
    rows, columns, places = left.shape[1], right.shape[1], left.shape[2]
    if places == 1:
        return _squares(left) * _squares(right)
    if places * (rows + columns) < rows * columns:
        gram = left.transpose(1, 2) @ left
        gram *= right.transpose(1, 2) @ right
        return gram.sum(dim=(1, 2))
    return _squares(left @ right.transpose(1, 2))


def _linear(layer: nn.Module, x: Tensor, g: Tensor) -> Tensor:
    """weight: sum over places of g x^T; bias: sum over places of g."""
    assert isinstance(layer, nn.Linear)
    if x.dim() == 2:
        squares = _squares(g)
        scale = _squares(x) * layer.weight.requires_grad + _trained(layer.bias)
        return squares * scale
    x, g = x.flatten(1, -2), g.flatten(1, -2)  # (B, places, ...)
    total = torch.zeros(len(x), dtype=g.dtype, device=g.device)
    if layer.weight.requires_grad:
        total += _product_squares(g.transpose(1, 2), x.transpose(1, 2))
    if _trained(layer.bias):
        total += _squares(g.sum(1))
    return total


def _trained(param: Tensor | None) -> bool:
    return param is not None and param.requires_grad


def _patches(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor) -> Tensor:
    """What every place of the output sees: (B, groups, numbers per place, places)."""
    axes = len(layer.kernel_size)
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str) or axes == 3:
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x = functional.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
        padding: tuple[int, ...] = (0,) * axes
    else:
        padding = layer.padding
    groups = layer.groups
    if axes == 3:
        # One view per axis: a window of `kernel` numbers, `dilation` apart, every `stride`.
        for axis, (k, s, d) in enumerate(
            zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
        ):
            x = x.unfold(2 + axis, d * (k - 1) + 1, s)[..., ::d]
        x = x.movedim((5, 6, 7), (2, 3, 4))  # (B, C, k, k, k, places ...)
        return x.reshape(len(x), groups, -1, x.shape[5:].numel())
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    if axes == 1:
        x, padding = x.unsqueeze(2), (0, *padding)
        kernel, stride, dilation = (1, *kernel), (1, *stride), (1, *dilation)
    columns = functional.unfold(x, kernel, dilation, padding, stride)  # pyright: ignore[reportArgumentType]
    return columns.view(len(x), groups, -1, columns.shape[-1])


def _convolution(layer: nn.Module, x: Tensor, g: Tensor) -> Tensor:
    """weight: sum over places of g patch^T, group by group; bias: sum over places of g."""
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    total = torch.zeros(len(x), dtype=g.dtype, device=g.device)
    g = g.flatten(2)  # (B, channels, places)
    if layer.weight.requires_grad:
        patches = _patches(layer, x).flatten(0, 1)
        channels = g.reshape(len(patches), -1, g.shape[-1])
        total += _product_squares(channels, patches).view(len(x), -1).sum(1)
    if _trained(layer.bias):
        total += _squares(g.sum(2))
    return total


def _embedding(layer: nn.Module, x: Tensor, g: Tensor) -> Tensor:
    """Places with the same word add up: sum_ts [word_t = word_s] g_t . g_s."""
    assert isinstance(layer, nn.Embedding)
    words, g = x.reshape(len(x), -1), g.reshape(len(x), -1, g.shape[-1])
    if layer.padding_idx is not None:
        g = g * (words != layer.padding_idx).unsqueeze(2)
    same = words.unsqueeze(2) == words.unsqueeze(1)
    return ((g @ g.transpose(1, 2)) * same).sum(dim=(1, 2))


def _affine(layer: nn.Module, normal: Tensor, g: Tensor, axes: tuple[int, ...]) -> Tensor:
    """y = normal * weight + bias, both summed over `axes`."""
    total = torch.zeros(len(g), dtype=g.dtype, device=g.device)
    for param, gradient in ((layer.weight, g * normal), (layer.bias, g)):
        if isinstance(param, Tensor) and param.requires_grad:
            total += _squares(gradient.sum(axes) if axes else gradient)
    return total


def _layer_norm(layer: nn.Module, x: Tensor, g: Tensor) -> Tensor:
    assert isinstance(layer, nn.LayerNorm)
    normal = functional.layer_norm(x, list(layer.normalized_shape), eps=layer.eps)
    between = tuple(range(1, x.dim() - len(layer.normalized_shape)))
    return _affine(layer, normal, g, between)


def _group_norm(layer: nn.Module, x: Tensor, g: Tensor) -> Tensor:
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
