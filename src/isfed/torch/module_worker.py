"""One module with its loss: values, gradients and scores of batches, as tensors."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from isfed.torch.example_norms import Watch
from isfed.torch.fast_sequential import Chain
from isfed.torch.flat_module import FlatModule

CHUNK = 1024  # rows per pass where there are many: bounds the memory of activations


class Batch(NamedTuple):
    """What one pass over a batch found."""

    gradients: Sequence[Tensor | None]  # of the weighted mean loss, None where there is none
    norms: Tensor | None  # (B,), if asked for
    loss: Tensor  # the weighted mean loss
    vector: Tensor | None = None  # the gradients in one vector, if they are; until the next batch


def per_example(values: Tensor) -> Tensor:
    """One loss per example: the mean over any further axes, such as the words of a text."""
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def _parts(rows: Tensor) -> Sequence[Tensor]:
    """Chunks of nearly the same size: batch norm cannot take one of a single row."""
    return rows.tensor_split(-(-len(rows) // CHUNK))


def _mean(values: Tensor, share: Tensor | None) -> Tensor:
    return values.mean() if share is None else torch.dot(values, share)


def _bound(slopes: Tensor, share: Tensor | None) -> Tensor:
    """The norm of every loss's gradient in the outputs, from that of the weighted mean."""
    norms = torch.linalg.vector_norm(slopes.flatten(1), dim=1)
    return norms * len(norms) if share is None else norms / share


def _shares(mean: Tensor, share: Tensor | None, count: int) -> Tensor:
    """What every example's loss counts in the mean."""
    return mean.new_full((), 1.0 / count) if share is None else share


@dataclass
class Trial:
    """What a trial of the module has shown; all workers of a network share it.

    others: the layers that go through torch.func.
    writes: whether the module changes its input in place, e.g. nn.ReLU(inplace=True) in front.
    """

    others: set[str] = field(default_factory=set)
    writes: bool = False


class Worker:
    """A flat module in training mode that turns batches into gradients and scores."""

    def __init__(
        self,
        flat: FlatModule,
        loss: Callable[[Tensor, Tensor], Tensor],
        watch: Watch | None,
        trial: Trial | None = None,
    ) -> None:
        """`watch` finds exact norms; without it the score is the last layer's bound."""
        self.flat = flat
        self.module: nn.Module = flat.module
        self.trial = Trial() if trial is None else trial
        self.loss = loss
        self.watch = watch
        self.chain = Chain.of(flat, loss)

    def outputs(self, x: Tensor) -> Tensor:
        """The forward pass; rows are somebody else's memory, which nothing may change."""
        return self.module(x.clone() if self.trial.writes else x)

    def values(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of every example."""
        return per_example(self.loss(self.outputs(x), y))

    def batch(self, x: Tensor, y: Tensor, weight: Tensor | None, *, scored: bool) -> Batch:
        """The gradient of the weighted mean loss; no weight means 1 for every example.

        A weight must be positive where scores are asked for, which are found from weighted losses.
        """
        if len(x) > CHUNK:
            return self._chunks(x, y, weight, scored=scored)
        share = None if weight is None else weight / len(x)
        if self.chain is not None and self.chain.takes(x, y):
            return self._chained(x, y, share, self.chain, scored=scored)
        if scored and self.watch is not None:
            return self._watched(x, y, share, self.watch)
        outputs = self.outputs(x)
        mean = _mean(per_example(self.loss(outputs, y)), share)
        if not scored:
            gradients = torch.autograd.grad(mean, self.flat.params, allow_unused=True)
            return Batch(gradients, None, mean.detach())
        wanted = [outputs, *self.flat.params]
        slopes, *gradients = torch.autograd.grad(mean, wanted, allow_unused=True)
        return Batch(gradients, _bound(slopes, share), mean.detach())

    def _chained(self, x, y, share: Tensor | None, chain: Chain, *, scored: bool) -> Batch:
        """The same without autograd."""
        if not scored or self.watch is None:
            mean, slopes = chain.batch(x, y, share)
            norms = _bound(slopes, share) if scored else None
            return Batch(chain.gradients, norms, mean, chain.gradient)
        squares = x.new_zeros(len(x))
        mean, _ = chain.batch(x, y, share, squares)
        squares /= _shares(mean, share, len(x)).square()
        return Batch(chain.gradients, squares.sqrt_(), mean, chain.gradient)

    def _watched(self, x: Tensor, y: Tensor, share: Tensor | None, watch: Watch) -> Batch:
        """The same with exact norms."""
        with watch.examples(len(x)):
            mean = _mean(self.values(x, y), share)
        share = _shares(mean, share, len(x))
        return Batch(*watch.gradients(mean, self.flat.params, x, y, share), mean.detach())

    def _chunks(self, x, y, weight: Tensor | None, *, scored: bool) -> Batch:
        """The same in several passes."""
        total: list[Tensor | None] = [None] * len(self.flat.params)
        norms, loss = [], x.new_zeros((), dtype=self.flat.dtype)
        weights = [None] * len(_parts(y)) if weight is None else _parts(weight)
        for rows, targets, some in zip(_parts(x), _parts(y), weights, strict=True):
            part = self.batch(rows, targets, some, scored=scored)
            share = len(rows) / len(x)
            for i, gradient in enumerate(part.gradients):
                if gradient is not None:
                    before = total[i]
                    total[i] = share * gradient if before is None else before + share * gradient
            loss += share * part.loss
            norms.append(part.norms)
        return Batch(total, torch.cat(norms) if scored else None, loss)

    def scores(self, x: Tensor, y: Tensor) -> Tensor:
        """The score of every example; the last layer's bound takes a forward pass alone."""
        pairs = zip(_parts(x), _parts(y), strict=True)
        return torch.cat([self._scores(inputs, targets) for inputs, targets in pairs])

    def _scores(self, x: Tensor, y: Tensor) -> Tensor:
        if self.watch is not None:
            norms = self.batch(x, y, None, scored=True).norms
            assert norms is not None
            return norms
        with torch.no_grad():
            outputs = self.outputs(x)
        outputs = outputs.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(per_example(self.loss(outputs, y)).sum(), outputs)
        return torch.linalg.vector_norm(gradient.flatten(1), dim=1)

    def flatten(self, batch: Batch) -> Tensor:
        """One vector of the trainable parameters' gradients; 0 where one took no part.

        The caller may change it, and must be done with it before the next batch.
        """
        if batch.vector is not None:
            return batch.vector
        gradients, params = batch.gradients, self.flat.params
        parts = [
            p.new_zeros(p.numel()) if g is None else g.reshape(-1)
            for g, p in zip(gradients, params, strict=True)
        ]
        return torch.cat(parts)

    def evaluate(self, measure: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
        """What `measure` makes of outputs and targets, in evaluation mode, row by row."""
        chain = self.chain if self.chain is not None and self.chain.takes_rows(x[:1]) else None
        outputs = self.outputs if chain is None else chain.outputs
        self.module.eval()
        try:
            with torch.no_grad():
                pairs = zip(x.split(CHUNK), y.split(CHUNK), strict=True)
                return torch.cat([measure(outputs(i), t) for i, t in pairs])
        finally:
            self.module.train()
            if chain is not None:
                chain.forget()
