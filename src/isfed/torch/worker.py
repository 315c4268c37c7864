"""One module with its loss: values, gradients and scores of batches, as tensors."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from isfed.torch.flat import FlatModule
from isfed.torch.watch import Watch


class Batch(NamedTuple):
    """What one pass over a batch found."""

    gradients: tuple[Tensor | None, ...]  # of the weighted mean loss, None where there is none
    norms: Tensor | None  # (B,), if asked for
    values: Tensor  # (B,), the unweighted losses


def per_example(values: Tensor) -> Tensor:
    """One loss per example: the mean over any further axes, such as the words of a text."""
    return values.flatten(1).mean(1) if values.dim() > 1 else values


class Worker:
    """A flat module in training mode that turns batches into gradients and scores."""

    def __init__(
        self, flat: FlatModule, loss: Callable[[Tensor, Tensor], Tensor], watch: Watch | None
    ) -> None:
        """`watch` finds exact norms; without it the score is the last layer's bound."""
        self.flat = flat
        self.module: nn.Module = flat.module
        self.loss = loss
        self.watch = watch

    def values(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of every example."""
        return per_example(self.loss(self.module(x), y))

    def batch(self, x: Tensor, y: Tensor, weight: Tensor | None, *, scored: bool) -> Batch:
        """The gradient of the weighted mean loss; no weight means 1 for every example."""
        share = None if weight is None else weight / len(x)
        exact = scored and self.watch is not None
        if exact:
            assert self.watch is not None
            with self.watch.examples(len(x)):
                return self._batch(x, y, share, bounded=False, exact=True)
        return self._batch(x, y, share, bounded=scored, exact=False)

    def _batch(self, x, y, share: Tensor | None, *, bounded: bool, exact: bool) -> Batch:
        outputs = self.module(x)
        values = per_example(self.loss(outputs, y))
        mean = values.mean() if share is None else torch.dot(values, share)
        wanted = [outputs, *self.flat.params] if bounded else self.flat.params
        gradients = torch.autograd.grad(mean, wanted, allow_unused=True)
        norms = None
        if bounded or exact:
            scale = share if share is not None else values.new_full((), 1.0 / len(x))
            if exact:
                assert self.watch is not None
                norms = self.watch.norms(x, y, scale)
            else:
                norms = torch.linalg.vector_norm(gradients[0].flatten(1), dim=1) / scale
                gradients = gradients[1:]
        return Batch(gradients, norms, values.detach())

    def bounds(self, x: Tensor, y: Tensor) -> Tensor:
        """The last layer's bound from a forward pass alone."""
        with torch.no_grad():
            outputs = self.module(x)
        outputs = outputs.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(per_example(self.loss(outputs, y)).sum(), outputs)
        return torch.linalg.vector_norm(gradient.flatten(1), dim=1)
