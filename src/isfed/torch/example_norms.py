"""Exact norms of every example's gradient: hooks where a layer has a rule, torch.func elsewhere."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from isfed.torch.norm_hooks import rule_of, saved_by_rule

OtherLayers = Literal["refuse", "func"]
AUDIT_TOLERANCE = 1e-3  # relative, in any float type: a forgotten layer is far off


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


def check_no_batch_norm(module: nn.Module) -> None:
    """Raise a LayerError that names the first layer that mixes the examples of a batch."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training:
            raise LayerError(
                name,
                f"layer {name!r} is {type(layer).__name__}, which mixes the examples of a batch: "
                "no example has a gradient of its own. Use nn.GroupNorm, or score='last_layer'",
            )


def without_rule(module: nn.Module) -> dict[str, str]:
    """The layers with trainable parameters that the rules do not cover, each with the reason."""
    owners: dict[int, list[str]] = {}
    for name, param in module.named_parameters(remove_duplicate=False):
        owners.setdefault(id(param), []).append(name)
    found = {}
    for name, layer in module.named_modules():
        if not _own(name, layer):
            continue
        if rule_of(layer) is None:
            found[name] = f"there is no rule for layer {name!r} ({type(layer).__name__})"
        for param in layer.parameters(recurse=False):
            if len(owners[id(param)]) > 1:
                shared = " and ".join(repr(owner) for owner in owners[id(param)])
                found[name] = f"layer {name!r} shares a parameter: {shared} are the same"
    return found


class Call(NamedTuple):
    """One layer in one forward pass."""

    layer: nn.Module
    x: Tensor
    output: torch.autograd.graph.GradientEdge  # where the gradient of its output arrives


class Watch:
    """The exact norm of every example's gradient, beside the gradient of a weighted batch.

    Hooks note the input of every layer during a forward pass; between passes there are none. A
    layer that this cannot serve is refused by name, or goes through `torch.func` with
    `other_layers="func"`; `audit` finds those that only show when the module runs.
    """

    def __init__(
        self,
        module: nn.Module,
        values: Callable[[Tensor, Tensor], Tensor],
        other_layers: OtherLayers,
        others: set[str] | None = None,
    ) -> None:
        """Watch `module`; `values` is the loss of every example from outputs and targets.

        `others` are the layers that go through torch.func, as far as known; it grows.
        """
        check_no_batch_norm(module)
        self.module = module
        self.values = values
        self.other_layers = other_layers
        self.others: set[str] = set() if others is None else others
        for name, reason in without_rule(module).items():
            self._refuse_or_add(LayerError(name, reason))
        self.num_examples = 0
        self.calls: dict[str, Call] = {}
        self.saved: set[Tensor] = set()  # whose gradients the rules find
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
        literal = {
            name: gradient.square().sum()
            for name, gradient in zip(named, gradients, strict=True)
            if gradient is not None
        }
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
        self.saved.clear()
        hooks = [
            layer.register_forward_hook(self._hook(name), with_kwargs=True)
            for name, layer in self.layers.items()
            if name not in self.others
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

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
        asked = [p for p in params if p not in self.saved]
        edges = [call.output for call in self.calls.values()]
        wanted: Any = [*asked, *edges]
        found = torch.autograd.grad(loss, wanted, allow_unused=True) if wanted else ()
        known: dict[Tensor, Tensor] = dict(zip(asked, found, strict=False))
        squares = loss.new_zeros(self.num_examples)
        for call, gradient in zip(self.calls.values(), found[len(asked) :], strict=True):
            if gradient is None:  # a layer that does not lead to the loss
                continue
            rule = rule_of(call.layer)
            assert rule is not None
            layer = rule(call.layer, call.x, gradient)
            squares += layer.squares
            known.update(layer.gradients)
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
        squares = [gradient.flatten(1).square().sum(1) for gradient in gradients]
        return torch.stack(squares).sum(0)

    def _hook(self, name: str):
        def forward(layer: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> None:
            if not output.requires_grad:
                return
            if name in self.calls:
                raise LayerError(
                    name,
                    f"layer {name!r} is used more than once in a forward pass: the norm of the "
                    "summed gradient is not found from its parts",
                )
            x = (args[0] if args else kwargs["input"]).detach()
            if len(x) != self.num_examples:
                raise LayerError(
                    name,
                    f"layer {name!r} gets an input of shape {tuple(x.shape)}, but examples must "
                    f"be along its first axis ({self.num_examples} of them)",
                )
            # The edge, not the tensor: something in place may follow, as nn.ReLU(inplace=True).
            edge = torch.autograd.graph.get_gradient_edge(output)
            self.calls[name] = Call(layer, x, edge)
            self.saved.update(saved_by_rule(layer, output))

        return forward
