"""One agent's turn on a module: local steps over drawn examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from isfed.base.random_streams import Stream
from isfed.federation.agents import LocalOptions
from isfed.sampling.policies import Refresh, Table
from isfed.sampling.telemetry import TurnWatch
from isfed.torch.flat_module import as_float64
from isfed.torch.module_worker import BatchGradient, Worker

_add: Any = getattr(torch, "_foreach_add_")  # noqa: B009  (one call for all tensors)
OptimizerFactory = Callable[..., torch.optim.Optimizer]


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
