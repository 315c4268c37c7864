"""Exact norms of every example's gradient: hooks where a layer has a rule, torch.func elsewhere.

A rule gets a layer, its input and the gradient of the loss in its output. It returns the squared
norm of every example's gradient in the layer's own parameters, (B,), and the gradients of the whole
batch where they cost nothing more. Examples must be along the first axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
OtherLayers = Literal["refuse", "func"]
SquaredNorms = tuple[Tensor, dict[Tensor, Tensor]]
AUDIT_TOLERANCE = 1e-3  # relative, in any float type: a forgotten layer is far off


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


def _linear(layer: nn.Linear, x: Tensor, g: Tensor) -> SquaredNorms:
    """weight: sum over places of g x^T; bias: sum over places of g."""
    if x.dim() == 2:
        scale = _squares(x) * layer.weight.requires_grad + _trained(layer.bias)
        return _squares(g) * scale, {}
    x, g = x.flatten(1, -2), g.flatten(1, -2)  # (B, places, ...)
    total = g.new_zeros(len(g))
    if layer.weight.requires_grad:
        total += _product_squares(g.transpose(1, 2), x.transpose(1, 2))[0]
    if _trained(layer.bias):
        total += _squares(g.sum(1))
    return total, {}


def _patches(layer: Convolution, x: Tensor) -> Tensor:
    """What every place of the output sees: (B, groups, numbers per place, places)."""
    axes = len(layer.kernel_size)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = functional.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    # One view per axis: a window of `kernel` numbers, `dilation` apart, every `stride`. Copying
    # the views is several times faster than `functional.unfold`.
    windows = zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    for axis, (kernel, stride, dilation) in enumerate(windows, 2):
        x = x.unfold(axis, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    # (B, C, kernel ..., places ...)
    x = x.movedim(tuple(range(2 + axes, 2 + 2 * axes)), tuple(range(2, 2 + axes)))
    return x.reshape(len(x), layer.groups, -1, x.shape[2 + axes :].numel())


def _convolution(layer: Convolution, x: Tensor, g: Tensor) -> SquaredNorms:
    """weight: sum over places of g patch^T, group by group; bias: sum over places of g."""
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
    return total, gradients


def _given_by_rule(layer: nn.Module, output: Tensor) -> list[Tensor]:
    """The parameters whose gradients the rule of a convolution returns: autograd need not."""
    if not isinstance(layer, Convolution) or not layer.weight.requires_grad:
        return []
    rows, columns = layer.out_channels // layer.groups, layer.weight[0].numel()
    places = output.shape[2:].numel()
    return [] if places == 1 or _by_gram(rows, columns, places) else [layer.weight]


def _embedding(layer: nn.Embedding, x: Tensor, g: Tensor) -> SquaredNorms:
    """Places with the same word add up: sum_ts [word_t = word_s] g_t . g_s."""
    words, g = x.reshape(len(x), -1), g.reshape(len(x), -1, g.shape[-1])
    if layer.padding_idx is not None:
        g = g * (words != layer.padding_idx).unsqueeze(2)
    same = words.unsqueeze(2) == words.unsqueeze(1)
    return ((g @ g.transpose(1, 2)) * same).sum(dim=(1, 2)), {}


def _normalization(layer: nn.LayerNorm | nn.GroupNorm, x: Tensor, g: Tensor) -> SquaredNorms:
    """y = normal * weight + bias; the gradients of both are summed over places."""
    if isinstance(layer, nn.GroupNorm):
        normal = functional.group_norm(x, layer.num_groups, eps=layer.eps)
        axes = tuple(range(2, x.dim()))
    else:
        normal = functional.layer_norm(x, list(layer.normalized_shape), eps=layer.eps)
        axes = tuple(range(1, x.dim() - len(layer.normalized_shape)))
    total = g.new_zeros(len(g))
    for param, gradient in ((layer.weight, g * normal), (layer.bias, g)):
        if _trained(param):
            total += _squares(gradient.sum(axes) if axes else gradient)
    return total, {}


RULES: dict[type[nn.Module], Callable[[Any, Tensor, Tensor], SquaredNorms]] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    **dict.fromkeys((nn.LayerNorm, nn.GroupNorm), _normalization),
}


def _has_rule(layer: nn.Module) -> bool:
    """Not a subclass, which may compute something else."""
    odd = isinstance(layer, nn.Embedding) and (
        layer.scale_grad_by_freq or layer.max_norm is not None or layer.sparse
    )
    return type(layer) in RULES and not odd


class LayerError(ValueError):
    """A layer for which exact gradient norms cannot be computed."""

    def __init__(self, layer: str, message: str) -> None:
        super().__init__(message)
        self.layer = layer

    def __reduce__(self) -> tuple[type[LayerError], tuple[str, str]]:
        return type(self), (self.layer, str(self))  # for another process


def _own(name: str, layer: nn.Module) -> list[str]:
    """The names of the trainable parameters that a layer itself owns."""
    named = layer.named_parameters(name, recurse=False)
    return [param_name for param_name, param in named if param.requires_grad]


def _layers_without_rule(module: nn.Module) -> dict[str, str]:
    """The layers with trainable parameters that the rules do not cover, each with the reason.

    Raises a LayerError for the first layer that mixes the examples of a batch.
    """
    owners: dict[Tensor, list[str]] = {}
    for name, param in module.named_parameters(remove_duplicate=False):
        owners.setdefault(param, []).append(name)
    reasons = {}
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training:
            raise LayerError(
                name,
                f"layer {name!r} is {type(layer).__name__}, which mixes the examples of a batch: "
                "no example has a gradient of its own. Use nn.GroupNorm, or score='last_layer'",
            )
        if not _own(name, layer):
            continue
        if not _has_rule(layer):
            reasons[name] = f"there is no rule for layer {name!r} ({type(layer).__name__})"
        for param in layer.parameters(recurse=False):
            if len(owners[param]) > 1:
                shared = " and ".join(map(repr, owners[param]))
                reasons[name] = f"layer {name!r} shares a parameter: {shared} are the same"
    return reasons


class ExampleNorms:
    """The exact norm of every example's gradient, beside the gradient of a weighted batch.

    Hooks note the input of every layer during a forward pass; between passes there are none. A
    layer that this cannot serve is refused by name, or goes through `torch.func` with
    `other_layers="func"`; `audit` finds those that only show when the module runs. `values` are the
    losses of examples, and `others` the layers for torch.func, as far as known: it grows.
    """

    def __init__(
        self,
        module: nn.Module,
        values: Callable[[Tensor, Tensor], Tensor],
        other_layers: OtherLayers,
        others: set[str] | None = None,
    ) -> None:
        self.module, self.values, self.other_layers = module, values, other_layers
        self.others: set[str] = set() if others is None else others
        for name, reason in _layers_without_rule(module).items():
            self._refuse_or_add(LayerError(name, reason))
        self.num_examples = 0
        # Of every layer: itself, its input, and where the gradient of its output arrives.
        self.calls: dict[str, tuple[nn.Module, Tensor, torch.autograd.graph.GradientEdge]] = {}
        self.given: set[Tensor] = set()  # the parameters whose gradients come from the rules
        self.layers = {name: m for name, m in module.named_modules() if _own(name, m)}

    def _refuse_or_add(self, error: LayerError) -> None:
        if self.other_layers == "refuse":
            hint = "; score='exact' needs other_layers='func' here (slower), or use 'last_layer'"
            raise LayerError(error.layer, f"{error}{hint}") from None
        self.others.add(error.layer)

    def audit(self, x: Tensor, y: Tensor) -> None:
        """Compare with the gradient of a single example, which needs no rule."""
        while True:
            try:
                self._audit(x[:1], y[:1])
                return
            except LayerError as error:
                if error.layer in self.others or not error.layer:  # nothing more to try
                    raise
                self._refuse_or_add(error)

    def _audit(self, x: Tensor, y: Tensor) -> None:
        named = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        with self.examples(2):  # an input with one row for all examples shows beside two of them
            self.module(torch.cat([x, x]))
        with self.examples(1):
            loss = self.values(self.module(x.clone()), y).sum()
        keep: Any = {"allow_unused": True, "retain_graph": True}
        gradients = torch.autograd.grad(loss, list(named.values()), **keep)
        pairs = zip(named, gradients, strict=True)
        literal = {name: g.square().sum() for name, g in pairs if g is not None}
        for layer in self.layers.keys() - self.calls.keys() - self.others:
            used = [name for name in _own(layer, self.layers[layer]) if name in literal]
            if used:
                raise LayerError(layer, f"parameter {used[0]!r} is used without calling its layer")
        norm = self.gradients(loss, [], x, y)[1][0]
        expected = torch.stack(list(literal.values())).sum().sqrt() if literal else norm * 0
        if (norm - expected).abs() > AUDIT_TOLERANCE * expected:
            raise LayerError(
                "",
                f"the layers' gradient norms give {norm:.6g} for one example, but its gradient "
                f"has norm {expected:.6g}: some parameter is also used outside its layer. Use "
                "score='last_layer'",
            )

    @contextmanager
    def examples(self, num_examples: int) -> Iterator[None]:
        """A forward pass over that many examples."""
        self.num_examples = num_examples
        self.calls.clear()
        self.given.clear()
        with ExitStack() as hooks:
            for name, layer in self.layers.items():
                if name not in self.others:
                    note = partial(self._note, name)
                    hooks.enter_context(layer.register_forward_hook(note, with_kwargs=True))
            yield

    def gradients(
        self,
        loss: Tensor,
        params: Sequence[nn.Parameter],
        x: Tensor,
        y: Tensor,
        share: Tensor | None = None,
    ) -> tuple[list[Tensor | None], Tensor]:
        """The gradients of a loss in `params`, and every example's norm.

        The loss must come from the last forward pass, over `x` and `y`; it is the sum of the
        examples' losses, each multiplied by its `share`.
        """
        asked = [p for p in params if p not in self.given]
        wanted: Any = [*asked, *(edge for _, _, edge in self.calls.values())]
        gradients = torch.autograd.grad(loss, wanted, allow_unused=True) if wanted else ()
        known: dict[Tensor, Tensor] = dict(zip(asked, gradients, strict=False))
        squares = loss.new_zeros(self.num_examples)
        calls = zip(self.calls.values(), gradients[len(asked) :], strict=True)
        for (layer, inputs, _), gradient in calls:
            if gradient is not None:  # else the layer does not lead to the loss
                more, given = RULES[type(layer)](layer, inputs, gradient)
                squares += more
                known.update(given)
        self.calls.clear()
        if share is not None:
            squares = squares / share.square()
        if self.others:
            squares = squares + self._through_func(x, y)
        return [known.get(param) for param in params], squares.sqrt()

    def _through_func(self, x: Tensor, y: Tensor) -> Tensor:
        """Squared norms of the layers without hooks, by `torch.func`."""
        moved = {name for layer in self.others for name in _own(layer, self.layers[layer])}
        params = {name: p.detach() for name, p in self.module.named_parameters()}
        varied = {name: params.pop(name) for name in sorted(moved) if name in params}

        def loss(some: dict[str, Tensor], row: Tensor, target: Tensor) -> Tensor:
            alone = row[None].clone()  # the module may change it
            outputs = torch.func.functional_call(self.module, {**params, **some}, alone)
            return self.values(outputs, target[None]).sum()

        per_example: Any = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
        try:
            gradients: Sequence[Tensor] = tuple(per_example(varied, x, y).values())
        except RuntimeError as error:
            layer, reason = min(self.others), str(error).splitlines()[0]
            if "randomness" in reason:
                reason = "the module draws random numbers, as nn.Dropout does."
            raise LayerError(
                layer,
                f"torch.func cannot compute the gradients of single examples for layer {layer!r}: "
                f"{reason} Use score='last_layer'",
            ) from error
        return torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0)

    def _note(self, name: str, layer: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> None:
        """The hook of a layer: keep what its rule needs."""
        if not output.requires_grad:
            return
        if name in self.calls:
            raise LayerError(
                name,
                f"layer {name!r} is used more than once in a forward pass: the norm of the summed "
                "gradient is not found from its parts",
            )
        x = (args[0] if args else kwargs["input"]).detach()
        if len(x) != self.num_examples:
            raise LayerError(
                name,
                f"layer {name!r} gets an input of shape {tuple(x.shape)}, but examples must be "
                f"along its first axis ({self.num_examples} of them)",
            )
        # The edge, not the tensor: something in place may follow, as nn.ReLU(inplace=True).
        edge = torch.autograd.graph.get_gradient_edge(output)
        self.calls[name] = (layer, x, edge)
        self.given.update(_given_by_rule(layer, output))
