"""One agent's turn on a module: local steps over drawn examples."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from isfed.base.random_streams import Stream
from isfed.federation.agents import Local
from isfed.sampling.policies import Policy, Refresh, Table
from isfed.sampling.telemetry import TurnWatch
from isfed.torch.module_worker import Batch, Worker

_add: Any = getattr(torch, "_foreach_add_")  # noqa: B009  (one call for all tensors)
OptimizerFactory = Callable[..., torch.optim.Optimizer]


class Order(NamedTuple):
    """What one turn is made of, apart from its model and its data.

    agent: its number.
    steps: E_k.
    batch_size: B_k.
    step: the step size, weights and divisions included.
    correction: (M,) added to every gradient, or None.
    velocity: (M,) of the momentum, changed in place, or None.
    """

    agent: int
    steps: int
    batch_size: int
    step: float
    correction: np.ndarray | None
    velocity: np.ndarray | None


class Outcome(NamedTuple):
    """What a turn found beside the model, which is left in the worker."""

    gradients: int  # examples whose gradients were computed
    loss: float  # the mean over the steps
    moments: tuple[float, float]  # means of norm * share and of its square, 0 if nobody asked


class Sampled:
    """How a turn draws its examples: the policy, its table, the stream."""

    def __init__(self, policy: Policy, table: Table, stream: Stream, watch: TurnWatch) -> None:
        self.policy, self.table, self.stream, self.watch = policy, table, stream, watch

    def draw(self, batch_size: int) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """The examples, their weights in the mean, and their shares 1 / (N_k p_n).

        No weights stand for weights of 1.
        """
        units, prob = self.table.draw(batch_size, self.stream)
        if self.policy.equal and units.size == batch_size:
            return units, None, None
        share = 1.0 / (self.table.count * prob)
        # A design of random size: the mean is over B_k.
        return units, share * (units.size / batch_size), share

    def learn(self, units: np.ndarray, norms: np.ndarray, share: np.ndarray | None) -> None:
        """Tell the table and the telemetry what the examples turned out to be."""
        if self.policy.equal:
            return
        assert share is not None
        known = norms if self.policy.learns else self.table.scores[units]
        self.watch.batch(share, known)
        self.table.refresh(units, norms)


def take_turn(
    worker: Worker,
    data: tuple[Tensor, Tensor],
    order: Order,
    sampled: Sampled,
    *,
    local: Local,
    scored: bool,
    optimizer: OptimizerFactory | None = None,
) -> Outcome:
    """Train the worker's module from where it stands."""
    x, y = data
    stepper = _stepper(worker, order, local, optimizer)
    gradients, first, second, drawn = 0, 0.0, 0.0, 0
    loss = worker.flat.flat.new_zeros(())
    if sampled.policy.refresh == Refresh.ALL and not local.full_batch:
        sampled.table.replace(_float64(worker.scores(x, y)))  # eq. (49)
        gradients = len(y)
    for _ in range(order.steps):
        if local.full_batch:
            found = worker.batch(x, y, None, scored=scored)
            units, share = None, None
            drawn += len(y)
        else:
            units, weight, share = sampled.draw(order.batch_size)
            drawn += order.batch_size
            if units.size == 0:
                continue
            rows = torch.from_numpy(units).to(x.device)
            weights = None if weight is None else torch.from_numpy(weight).to(worker.flat.flat)
            found = worker.batch(
                x.index_select(0, rows), y.index_select(0, rows), weights, scored=scored
            )
        gradients += len(y) if units is None else units.size
        stepper(found)
        loss += found.loss
        if found.norms is not None:
            norms = _float64(found.norms)
            weighted = norms if share is None else norms * share
            first += float(weighted.sum())
            second += float(weighted @ weighted)
            if units is not None:
                sampled.learn(units, norms, share)
        elif units is not None and share is not None:
            sampled.learn(units, np.zeros(units.size), share)
    mean = float(loss) / max(order.steps, 1)
    return Outcome(gradients, mean, (first / drawn, second / drawn) if drawn else (0.0, 0.0))


def _float64(values: Tensor) -> np.ndarray:
    return values.detach().cpu().numpy().astype(np.float64)


def _stepper(
    worker: Worker, order: Order, local: Local, optimizer: OptimizerFactory | None
) -> Callable[[Batch], None]:
    """What moves the module by the gradients of a batch."""
    changed = local.prox != 0.0 or local.momentum != 0.0 or order.correction is not None
    if optimizer is not None:
        if local.momentum != 0.0:
            raise ValueError(
                "both the method and the local optimizer have momentum; use only one of them"
            )
        made = optimizer(worker.flat.params, lr=order.step)
        return _OptimizerStep(worker, order, local, made, changed)
    if changed:
        return _VectorStep(worker, order, local)
    return _PlainStep(worker, order.step)


class _PlainStep:
    """x <- x - step gradient."""

    def __init__(self, worker: Worker, step: float) -> None:
        self.params: list[Any] = worker.flat.params
        self.model = worker.flat.flat[: worker.flat.trained]
        self.step = step

    def __call__(self, batch: Batch) -> None:
        if batch.vector is not None:
            self.model.add_(batch.vector, alpha=-self.step)
            return
        pairs = zip(self.params, batch.gradients, strict=True)
        used = [(p, g) for p, g in pairs if g is not None]
        with torch.no_grad():
            _add([p for p, _ in used], [g for _, g in used], alpha=-self.step)


class _VectorStep:
    """The same with a pull to the start, a correction, or momentum, on the flat vector."""

    def __init__(self, worker: Worker, order: Order, local: Local) -> None:
        self.worker, self.local, self.step = worker, local, order.step
        self.model = worker.flat.flat[: worker.flat.trained]
        self.start = self.model.clone() if local.prox != 0.0 else self.model
        self.correction = self._tensor(order.correction)
        self.given = order.velocity
        self.velocity = self._tensor(order.velocity)

    def _tensor(self, vector: np.ndarray | None) -> Tensor | None:
        if vector is None or not vector.size:
            return None
        return torch.as_tensor(vector[: self.model.numel()]).to(self.model, copy=True)

    def direction(self, batch: Batch) -> Tensor:
        """Gradient, pull and correction."""
        direction = self.worker.flatten(batch)
        if self.local.prox != 0.0:
            direction.add_(self.model - self.start, alpha=self.local.prox)
        if self.correction is not None:
            direction.add_(self.correction)
        return direction

    def __call__(self, batch: Batch) -> None:
        direction = self.direction(batch)
        if self.local.momentum != 0.0:
            assert self.velocity is not None
            assert self.given is not None
            self.velocity.mul_(self.local.momentum).add_(direction)
            heavy = direction.add(self.velocity, alpha=self.local.momentum)
            direction = heavy if self.local.nesterov else self.velocity
            self.given[: self.model.numel()] = self.velocity.cpu().numpy()
        self.model.add_(direction, alpha=-self.step)


class _OptimizerStep(_VectorStep):
    """A step of the user's own optimizer, fresh for every turn."""

    def __init__(
        self,
        worker: Worker,
        order: Order,
        local: Local,
        made: torch.optim.Optimizer,
        changed: bool,
    ) -> None:
        super().__init__(worker, order, local)
        self.made, self.changed = made, changed

    def __call__(self, batch: Batch) -> None:
        params = self.worker.flat.params
        gradients = batch.gradients
        if self.changed:
            pieces = self.direction(batch).split([p.numel() for p in params])
            gradients = [piece.view(p.shape) for piece, p in zip(pieces, params, strict=True)]
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient
        self.made.step()
        for param in params:
            param.grad = None
