"""One module with its loss: gradients and scores of batches, and an agent's turn over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from isfed.base.random_streams import Stream
from isfed.federation.agents import LocalOptions
from isfed.sampling.policies import Refresh, Table
from isfed.sampling.telemetry import TurnWatch
from isfed.torch.example_norms import ExampleNorms
from isfed.torch.fast_sequential import FastSequential
from isfed.torch.flat_module import FlatModule, as_float64

_add: Any = getattr(torch, "_foreach_add_")  # noqa: B009  (one call for all tensors)
OptimizerFactory = Callable[..., torch.optim.Optimizer]
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


class TurnTask(NamedTuple):
    """What one turn is made of, apart from its model and its data."""

    agent: int
    steps: int  # E_k
    batch_size: int  # B_k
    step: float  # the step size, weights and divisions included
    correction: np.ndarray | None  # (M,) added to every gradient
    velocity: np.ndarray  # (M,) of the momentum, changed in place; empty without momentum
    local: LocalOptions
    table: Table  # the scores of the examples, which it draws by `stream`
    stream: Stream
    watch: TurnWatch


class TurnResult(NamedTuple):
    """What a turn gives beside the model, which is left in the worker."""

    gradients: int  # examples whose gradients were computed
    loss: float  # the mean over the steps
    moments: tuple[float, float]  # means of norm * share and of its square, 0 unless requested


def train_module(
    worker: Worker,
    data: tuple[Tensor, Tensor],
    task: TurnTask,
    *,
    scored: bool,
    optimizer: OptimizerFactory | None,
) -> TurnResult:
    """Train the worker's module from where it stands."""
    (x, y), table, local, policy = data, task.table, task.local, task.table.policy
    take_step = _LocalStep(worker, task, optimizer)
    gradients, first, second, size = 0, 0.0, 0.0, task.batch_size
    loss = worker.flat.flat.new_zeros(())
    if policy.refresh == Refresh.ALL and not local.full_batch:
        table.replace(as_float64(worker.scores(x, y)))  # eq. (49)
        gradients = len(y)
    for _ in range(task.steps):
        units = share = weight = None
        rows = (x, y)
        if not local.full_batch:
            units, prob = table.draw(size, task.stream)
            if units.size == 0:
                continue
            if not policy.equal or units.size != size:
                share = 1.0 / (table.count * prob)
                # A design of random size: the mean is over B_k.
                weight = torch.from_numpy(share * (units.size / size)).to(worker.flat.flat)
            places = torch.from_numpy(units).to(x.device)
            rows = x.index_select(0, places), y.index_select(0, places)
        batch = worker.batch(*rows, weight, scored=scored)
        gradients += len(rows[1])
        take_step(batch)
        loss += batch.loss
        norms = np.zeros(len(rows[1])) if batch.norms is None else as_float64(batch.norms)
        if batch.norms is not None:
            weighted = norms if share is None else norms * share
            first += float(weighted.sum())
            second += float(weighted @ weighted)
        if units is not None and not policy.equal:
            task.watch.batch(share, norms if policy.learns else table.scores[units])
            table.refresh(units, norms)
    drawn = max(task.steps * (len(y) if local.full_batch else size), 1)
    return TurnResult(gradients, float(loss) / max(task.steps, 1), (first / drawn, second / drawn))


class _LocalStep:
    """Moves the module by the gradient of a batch.

    A plain step; or one with a pull to the start, a correction or momentum, on the flat vector; or
    a step of the user's own optimizer, fresh for every turn.
    """

    def __init__(self, worker: Worker, task: TurnTask, optimizer: OptimizerFactory | None) -> None:
        local = task.local
        if optimizer is not None and local.momentum != 0.0:
            raise ValueError(
                "both the method and the local optimizer have momentum; use only one of them"
            )
        self.worker, self.local, self.step = worker, local, task.step
        self.params: list[Any] = worker.flat.params
        self.model = worker.flat.flat[: worker.flat.trained]
        self.optimizer = None if optimizer is None else optimizer(self.params, lr=task.step)
        self.plain = local.prox == 0.0 and local.momentum == 0.0 and task.correction is None
        if self.plain:
            return
        self.start = self.model.clone() if local.prox != 0.0 else self.model
        self.correction = None if task.correction is None else self._tensor(task.correction)
        self.given, self.velocity = task.velocity, self._tensor(task.velocity)

    def _tensor(self, vector: np.ndarray) -> Tensor:
        return torch.as_tensor(vector[: self.model.numel()]).to(self.model, copy=True)

    def _direction(self, batch: BatchGradient) -> Tensor:
        """Gradient, pull, correction and momentum."""
        direction = self.worker.flatten(batch)
        if self.local.prox != 0.0:
            direction.add_(self.model - self.start, alpha=self.local.prox)
        if self.correction is not None:
            direction.add_(self.correction)
        if self.local.momentum == 0.0:
            return direction
        self.velocity.mul_(self.local.momentum).add_(direction)
        self.given[: self.model.numel()] = self.velocity.cpu().numpy()
        if self.local.nesterov:
            return direction.add(self.velocity, alpha=self.local.momentum)
        return self.velocity

    def __call__(self, batch: BatchGradient) -> None:
        if self.optimizer is not None:
            gradients = batch.gradients
            if not self.plain:
                gradients = self.worker.flat.views_of(self._direction(batch))
            for param, gradient in zip(self.params, gradients, strict=True):
                param.grad = gradient
            self.optimizer.step()
            for param in self.params:
                param.grad = None
        elif not self.plain or batch.vector is not None:
            vector = batch.vector if self.plain else self._direction(batch)
            self.model.add_(vector, alpha=-self.step)
        else:  # faster than to join the gradients first
            pairs = zip(self.params, batch.gradients, strict=True)
            used = [(p, g) for p, g in pairs if g is not None]
            with torch.no_grad():
                _add([p for p, _ in used], [g for _, g in used], alpha=-self.step)
