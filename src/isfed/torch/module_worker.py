"""One module with its loss: values, gradients and scores of batches, as tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isfed.torch.example_norms import ExampleNorms
from isfed.torch.fast_sequential import FastSequential
from isfed.torch.flat_module import FlatModule

CHUNK = 1024  # rows per pass where there are many: bounds the memory of activations
_BINARY = {nn.BCEWithLogitsLoss: 0.0, nn.BCELoss: 0.5}  # from which output on the class is 1


class BatchGradient(NamedTuple):
    """What one pass over a batch gives."""

    gradients: Sequence[Tensor | None]  # of the weighted mean loss, None where there is none
    norms: Tensor | None  # (B,), if asked for
    loss: Tensor  # the weighted mean loss
    vector: Tensor | None = None  # the gradients in one vector, if they are; until the next batch


def per_example(values: Tensor) -> Tensor:
    """One loss per example: the mean over any further axes, such as the words of a text."""
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def correct_examples(loss: Any, outputs: Tensor, targets: Tensor) -> Tensor:
    """(B,) 1 for an example whose class the outputs predict, 0 for another one.

    Of a sequence, the share of its entries that are right. nan where targets are not classes, or
    where the loss ignores them.
    """
    classes = not targets.is_floating_point() and outputs.dim() > 1 and outputs.shape[1] > 1
    if type(loss) in _BINARY and ((targets == 0) | (targets == 1)).all():
        right = ((outputs > _BINARY[type(loss)]) == (targets > 0.5)).float()
    elif classes and outputs.shape[:1] + outputs.shape[2:] == targets.shape:
        right = (outputs.argmax(1) == targets).float()
        right[targets == getattr(loss, "ignore_index", -100)] = torch.nan
    else:
        right = torch.full((len(outputs),), torch.nan, device=outputs.device)
    return right.reshape(len(right), -1).nanmean(1)


def _parts(rows: Tensor) -> Sequence[Tensor]:
    """Chunks of nearly the same size: batch norm cannot take one of a single row."""
    return rows.tensor_split(-(-len(rows) // CHUNK))


def _mean(values: Tensor, share: Tensor | None) -> Tensor:
    return values.mean() if share is None else torch.dot(values, share)


def _bound(slopes: Tensor, share: Tensor | None) -> Tensor:
    """The norm of every loss's gradient in the outputs, from that of the weighted mean."""
    norms = torch.linalg.vector_norm(slopes.flatten(1), dim=1)
    return norms * len(norms) if share is None else norms / share


@dataclass
class Trial:
    """What a trial of the module has shown; all workers of a network share it."""

    others: set[str] = field(default_factory=set)  # the layers that go through torch.func
    writes: bool = False  # whether the module changes its input, as nn.ReLU(inplace=True) in front


class Worker:
    """A flat module in training mode that turns batches into gradients and scores.

    Without `exact_norms` the score is the last layer's bound.
    """

    def __init__(
        self,
        flat: FlatModule,
        loss: Callable[[Tensor, Tensor], Tensor],
        exact_norms: ExampleNorms | None,
        trial: Trial | None = None,
    ) -> None:
        self.flat, self.loss, self.exact_norms = flat, loss, exact_norms
        self.module: nn.Module = flat.module
        self.trial = trial or Trial()
        self.fast = FastSequential.of(flat, loss)

    def outputs(self, x: Tensor) -> Tensor:
        """The forward pass; it leaves `x` as it is."""
        return self.module(x.clone() if self.trial.writes else x)

    def values(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of every example."""
        return per_example(self.loss(self.outputs(x), y))

    def batch(self, x: Tensor, y: Tensor, weight: Tensor | None, *, scored: bool) -> BatchGradient:
        """The gradient of the weighted mean loss; no weight means 1 for every example.

        A weight must be positive where scores are asked for: they come from the weighted losses.
        """
        if len(x) > CHUNK:
            return self._chunks(x, y, weight, scored=scored)
        share = None if weight is None else weight / len(x)
        exact = self.exact_norms if scored else None
        params, even = self.flat.params, 1.0 / len(x)
        if self.fast is not None and self.fast.takes(x, y):
            squares = None if exact is None else x.new_zeros(len(x))
            mean, slopes = self.fast.batch(x, y, share, squares)
            norms = _bound(slopes, share) if scored and exact is None else None
            if squares is not None:
                squares /= (mean.new_full((), even) if share is None else share).square()
                norms = squares.sqrt_()
            return BatchGradient(self.fast.gradients, norms, mean, self.fast.gradient)
        if exact is not None:
            with exact.examples(len(x)):
                mean = _mean(self.values(x, y), share)
            share = mean.new_full((), even) if share is None else share
            return BatchGradient(*exact.gradients(mean, params, x, y, share), mean.detach())
        outputs = self.outputs(x)
        mean = _mean(per_example(self.loss(outputs, y)), share)
        wanted = [outputs, *params] if scored else params
        gradients = torch.autograd.grad(mean, wanted, allow_unused=True)
        if not scored:
            return BatchGradient(gradients, None, mean.detach())
        return BatchGradient(gradients[1:], _bound(gradients[0], share), mean.detach())

    def _chunks(self, x, y, weight: Tensor | None, *, scored: bool) -> BatchGradient:
        """The same in several passes."""
        total: list[Tensor | None] = [None] * len(self.flat.params)
        norms, loss = [], x.new_zeros((), dtype=self.flat.dtype)
        weights = [None] * len(_parts(y)) if weight is None else _parts(weight)
        for rows, targets, some in zip(_parts(x), _parts(y), weights, strict=True):
            part = self.batch(rows, targets, some, scored=scored)
            share = len(rows) / len(x)
            for i, (before, gradient) in enumerate(zip(total, part.gradients, strict=True)):
                if gradient is not None:
                    total[i] = share * gradient if before is None else before + share * gradient
            loss += share * part.loss
            norms.append(part.norms)
        return BatchGradient(total, torch.cat(norms) if scored else None, loss)

    def scores(self, x: Tensor, y: Tensor) -> Tensor:
        """The score of every example; the last layer's bound takes a forward pass alone."""
        if self.exact_norms is not None:
            return self.batch(x, y, None, scored=True).norms
        norms = []
        for rows, targets in zip(_parts(x), _parts(y), strict=True):
            with torch.no_grad():
                outputs = self.outputs(rows)
            outputs = outputs.detach().requires_grad_()
            total = per_example(self.loss(outputs, targets)).sum()
            (gradient,) = torch.autograd.grad(total, outputs)
            norms.append(torch.linalg.vector_norm(gradient.flatten(1), dim=1))
        return torch.cat(norms)

    def flatten(self, batch: BatchGradient) -> Tensor:
        """One vector of the trainable parameters' gradients; 0 where one took no part.

        The caller may change it, and must be done with it before the next batch.
        """
        if batch.vector is not None:
            return batch.vector
        pairs = zip(batch.gradients, self.flat.params, strict=True)
        return torch.cat([p.new_zeros(p.numel()) if g is None else g.reshape(-1) for g, p in pairs])

    def evaluate(self, measure: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
        """What `measure` makes of outputs and targets, in evaluation mode, row by row."""
        fast = self.fast if self.fast is not None and self.fast.takes_rows(x[:1]) else None
        outputs = self.outputs if fast is None else fast.outputs
        self.module.eval()
        try:
            with torch.no_grad():
                pairs = zip(x.split(CHUNK), y.split(CHUNK), strict=True)
                return torch.cat([measure(outputs(i), t) for i, t in pairs])
        finally:
            self.module.train()
            if fast is not None:
                fast.forget()
