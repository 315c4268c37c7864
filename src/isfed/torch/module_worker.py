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
from isfed.torch.flat_module import FlatModule, as_float64, as_tensor

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
    moved: bool = False  # whether the model has taken the step already


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


def mean_loss(values: Tensor, share: Tensor | None) -> Tensor:
    """The weighted mean; the shares are 1 / B unless given."""
    return values.mean() if share is None else torch.dot(values, share)


def bound_of(slopes: Tensor) -> Tensor:
    """The norm of every loss's gradient in the outputs."""
    return torch.linalg.vector_norm(slopes.flatten(1), dim=1)


def _bound(slopes: Tensor, share: Tensor | None) -> Tensor:
    """The same from the gradient of the weighted mean."""
    norms = bound_of(slopes)
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

    def batch(
        self, x: Tensor, y: Tensor, weight: Tensor | None, *, scored: bool,
        step: float | None = None,
    ) -> BatchGradient:  # fmt: skip
        """The gradient of the weighted mean loss; no weight means 1 for every example.

        A weight must be positive where scores are asked for: they come from the weighted losses.
        With a `step`, passes written by hand take a plain step of that size on their way.
        """
        if len(x) > CHUNK:
            return self._chunks(x, y, weight, scored=scored)
        share = None if weight is None else weight / len(x)
        exact = self.exact_norms if scored else None
        params, even = self.flat.params, 1.0 / len(x)
        if self.fast is not None and self.fast.takes(x, y):
            squares = None if exact is None else x.new_zeros(len(x))
            mean, slopes = self.fast.batch(x, y, share, squares, step)
            norms = _bound(slopes, share) if scored and exact is None else None
            if squares is not None:
                squares /= (mean.new_full((), even) if share is None else share).square()
                norms = squares.sqrt_()
            moved = step is not None
            return BatchGradient(self.fast.gradients, norms, mean, self.fast.gradient, moved)
        if exact is not None:
            with exact.examples(len(x)):
                mean = mean_loss(self.values(x, y), share)
            share = mean.new_full((), even) if share is None else share
            return BatchGradient(*exact.gradients(mean, params, x, y, share), mean.detach())
        outputs = self.outputs(x)
        mean = mean_loss(per_example(self.loss(outputs, y)), share)
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
            return self.batch(x, y, None, scored=True).norms  # pyright: ignore[reportReturnType]
        norms = []
        for rows, targets in zip(_parts(x), _parts(y), strict=True):
            with torch.no_grad():
                outputs = self.outputs(rows)
            outputs = outputs.detach().requires_grad_()
            total = per_example(self.loss(outputs, targets)).sum()
            (gradient,) = torch.autograd.grad(total, outputs)
            norms.append(bound_of(gradient))
        return torch.cat(norms)

    def flatten(self, batch: BatchGradient, rows: tuple[int, ...] = ()) -> Tensor:
        """One vector of the trainable parameters' gradients; 0 where one took no part.

        Or several, of the agents in the leading `rows`. The caller may change it, and must be done
        with it before the next batch.
        """
        if batch.vector is not None:
            return batch.vector
        pairs = zip(batch.gradients, self.flat.params, strict=True)
        filled = [p.new_zeros(rows + p.shape) if g is None else g for g, p in pairs]
        return torch.cat([gradient.reshape(*rows, -1) for gradient in filled], -1)

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


class Turn:
    """The examples of one turn: which ones to use next, and what their norms tell."""

    def __init__(self, task: TurnTask, rows: slice) -> None:
        self.task, self.begin, self.count = task, rows.start, rows.stop - rows.start  # N_k
        self.policy, self.full_batch = task.table.policy, task.local.full_batch
        self.gradients, self.first, self.second = 0, 0.0, 0.0
        self.units: np.ndarray | None = None
        self.share: np.ndarray | None = None

    def draw(self) -> np.ndarray | None:
        """(B,) the weights of the next batch, `units`; None for equal ones."""
        table, size, self.share = self.task.table, self.task.batch_size, None
        self.units, prob = table.draw(size, self.task.stream)
        if self.policy.equal and self.units.size == size:
            return None
        self.share = 1.0 / (table.count * prob)
        return self.share * (self.units.size / size)  # random size: the mean is over B_k

    def learn(self, norms: np.ndarray | None) -> None:
        """Take note of a batch and of the norms of its examples, if they were asked for."""
        count = self.count if self.units is None else self.units.size
        self.gradients += count
        if norms is not None:
            weighted = norms if self.share is None else norms * self.share
            self.first += float(weighted.sum())
            self.second += float(weighted @ weighted)
        if self.units is not None and self.share is not None and not self.policy.equal:
            table, found = self.task.table, np.zeros(count) if norms is None else norms
            self.task.watch.batch(
                self.share, found if self.policy.learns else table.scores[self.units]
            )
            table.refresh(self.units, found)

    def result(self, loss: float) -> TurnResult:
        """All of it, with the sum of the batches' losses."""
        steps, size = self.task.steps, self.count if self.full_batch else self.task.batch_size
        drawn = max(steps * size, 1)
        moments = (self.first / drawn, self.second / drawn)
        return TurnResult(self.gradients, loss / max(steps, 1), moments)


def train_module(
    worker: Worker,
    data: tuple[Tensor, Tensor],
    turn: Turn,
    *,
    scored: bool,
    optimizer: OptimizerFactory | None,
) -> TurnResult:
    """Train the worker's module from where it stands; the data are those of the agent."""
    (x, y), flat, task = data, worker.flat, turn.task
    if optimizer is not None and task.local.momentum != 0.0:
        raise ValueError(
            "both the method and the local optimizer have momentum; use only one of them"
        )
    made = None if optimizer is None else optimizer(flat.params, lr=task.step)
    take_step = LocalStep(worker, task, optimizer=made)
    plain = task.step if take_step.plain and optimizer is None else None
    loss = flat.flat.new_zeros(())
    if turn.policy.refresh == Refresh.ALL and not turn.full_batch:
        task.table.replace(as_float64(worker.scores(x, y)))  # eq. (49)
        turn.gradients = len(y)
    for _ in range(task.steps):
        rows, weight = (x, y), None
        if not turn.full_batch:
            drawn = turn.draw()
            assert turn.units is not None
            if turn.units.size == 0:  # a step of the correction alone, if there is one
                take_step.without_examples()
                continue
            weight = None if drawn is None else torch.from_numpy(drawn).to(flat.flat)
            places = torch.from_numpy(turn.units).to(x.device)
            rows = x.index_select(0, places), y.index_select(0, places)
        batch = worker.batch(*rows, weight, scored=scored, step=plain)
        take_step(batch)
        loss += batch.loss
        turn.learn(None if batch.norms is None else as_float64(batch.norms))
    return turn.result(float(loss))


class LocalStep:
    """Moves a model by the gradient of a batch, or the models of a cohort by theirs.

    A plain step; or one with a pull to the start, a correction or momentum, on the flat vector; or
    a step of the user's own optimizer, fresh for every turn.

    Args:
        worker: whose module has the model.
        task: the turn; of several, one with the options of all.
        optimizer: the user's own.
        models: (n, M') those of a cohort, instead of the module's.
        steps: (n, 1) their step sizes if they differ.
    """

    def __init__(
        self,
        worker: Worker,
        task: TurnTask,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        models: Tensor | None = None,
        steps: Tensor | None = None,
    ) -> None:
        local, flat = task.local, worker.flat
        self.worker, self.local, self.step, self.steps = worker, local, task.step, steps
        self.optimizer, self.params = optimizer, flat.params
        self.model = flat.flat[: flat.trained]
        if models is not None:
            self.model, self.params = models, flat.views_of(models)
        self.plain = local.prox == 0.0 and local.momentum == 0.0 and task.correction is None
        if self.plain:
            return
        self.start = self.model.clone() if local.prox != 0.0 else self.model
        self.correction = None if task.correction is None else self._tensor(task.correction)
        self.given, self.velocity = task.velocity, self._tensor(task.velocity)

    def _tensor(self, vector: np.ndarray) -> Tensor:
        return as_tensor(vector[..., : self.model.shape[-1]]).to(self.model, copy=True)

    def _direction(self, batch: BatchGradient, rows: tuple[int, ...]) -> Tensor:
        """Gradient, pull, correction and momentum."""
        direction = self.worker.flatten(batch, rows)
        if self.local.prox != 0.0:
            direction.add_(self.model - self.start, alpha=self.local.prox)
        if self.correction is not None:
            direction.add_(self.correction)
        if self.local.momentum == 0.0:
            return direction
        self.velocity.mul_(self.local.momentum).add_(direction)
        self.given[..., : self.model.shape[-1]] = self.velocity.cpu().numpy()
        if self.local.nesterov:
            return direction.add(self.velocity, alpha=self.local.momentum)
        return self.velocity

    def without_examples(self) -> None:
        """A step where no example was drawn."""
        if not self.plain and self.correction is not None:
            zero = self.model.new_zeros(())
            self(BatchGradient([None] * len(self.params), None, zero))

    def __call__(self, batch: BatchGradient) -> None:
        if batch.moved:
            return
        if self.optimizer is not None:
            gradients = batch.gradients
            if not self.plain:
                gradients = self.worker.flat.views_of(self._direction(batch, ()))
            for param, gradient in zip(self.params, gradients, strict=True):
                param.grad = gradient
            self.optimizer.step()
            for param in self.params:
                param.grad = None
        elif not self.plain or batch.vector is not None or self.steps is not None:
            flatten = self.worker.flatten if self.plain else self._direction
            vector = flatten(batch, self.model.shape[:-1])
            if self.steps is not None:
                self.model.addcmul_(vector, self.steps, value=-1.0)
            else:
                self.model.add_(vector, alpha=-self.step)
        else:  # faster than to join the gradients first
            pairs = zip(self.params, batch.gradients, strict=True)
            used = [(p, g) for p, g in pairs if g is not None]
            with torch.no_grad():
                _add([p for p, _ in used], [g for _, g in used], alpha=-self.step)
