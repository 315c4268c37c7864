"""A cohort at once: the models of several agents side by side, in one pass of `torch.func.vmap`.

It pays where a model is small beside the calls that train it, and on GPUs. Elsewhere, and for
modules that vmap cannot take, turns are taken agent by agent; both give the same numbers up to
rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from isfed.federation.agent import AgentConfig
from isfed.methods.local_steps import has_fixed_size
from isfed.sampling.policies import Refresh
from isfed.torch.flat_module import as_float64
from isfed.torch.module_worker import (
    BatchGradient,
    LocalStep,
    OptimizerFactory,
    Turn,
    TurnResult,
    TurnTask,
    Worker,
    bound_of,
    mean_loss,
    per_example,
)

NUMBERS = {"cpu": 2**21}  # of all models in a pass at most: what a processor's cache can hold
MOST_NUMBERS = 2**27  # on other devices
REPEATS, LEAST_SECONDS = 3, 0.2  # of a comparison, at least; the shortest time counts
MOST_SECONDS = 2.0  # on the wall, where other work on the machine takes most of the processor
AHEAD = 1.05  # times as fast as agent by agent a cohort at once must be
SAME = 1e-3  # the largest difference of two gradients, relative to their largest number


class CohortPass:
    """One pass over the batches of several agents, each with a model of its own."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        module = worker.flat.module
        self.names = [name for name, p in module.named_parameters() if p.requires_grad]

        def loss(params: dict[str, Tensor], x: Tensor, y: Tensor, share: Tensor | None):
            rows = x.clone() if worker.trial.writes else x
            outputs = functional_call(module, params, (rows,))
            return mean_loss(per_example(worker.loss(outputs, y)), share), outputs

        both = grad_and_value(loss, has_aux=True)
        self._even: Callable = vmap(both, in_dims=(0, 0, 0, None))
        self._weighted: Callable = vmap(both)

    def batch(
        self, models: Tensor, x: Tensor, y: Tensor, weight: Tensor | None, *, scored: bool
    ) -> BatchGradient:
        """The gradients of n models, (n, M'), at n batches; loss and norms have the n in front."""
        params = dict(zip(self.names, self.worker.flat.views_of(models), strict=True))
        run = self._even if weight is None else self._weighted
        share = None if weight is None else weight / x.shape[1]
        found, (loss, outputs) = run(params, x, y, share)
        norms = None
        if scored:
            outputs = outputs.detach().flatten(0, 1).requires_grad_()
            total = per_example(self.worker.loss(outputs, y.flatten(0, 1))).sum()
            (slopes,) = torch.autograd.grad(total, outputs)
            norms = bound_of(slopes).view(x.shape[:2])
        return BatchGradient([found[name] for name in self.names], norms, loss)

    def train(
        self, data: tuple[Tensor, Tensor], turns: Sequence[Turn], models: Tensor, joint: TurnTask,
        *, scored: bool,
    ) -> list[TurnResult]:  # fmt: skip
        """Train `models`, (n, M), in place.

        Args:
            data: the rows of all agents.
            turns: one for each model, all with as many steps and examples.
            models: where the agents begin.
            joint: the options of all, with a correction and a velocity for each.
            scored: whether the norms of the examples are wanted.
        """
        x, y = data
        steps = np.array([[turn.task.step] for turn in turns])
        differ = None if np.ptp(steps) == 0.0 else torch.from_numpy(steps).to(models)
        take_step = LocalStep(self.worker, joint, models=models, steps=differ)
        begins = np.array([[turn.begin] for turn in turns])
        loss = models.new_zeros(len(turns))
        for _ in range(joint.steps):
            weights = [turn.draw() for turn in turns]
            places = torch.from_numpy(np.array([turn.units for turn in turns]) + begins)
            shape, places = places.shape, places.reshape(-1).to(x.device)
            rows = [part.index_select(0, places).unflatten(0, shape) for part in (x, y)]
            even = weights[0] is None
            weight = None if even else torch.from_numpy(np.array(weights)).to(models)
            batch = self.batch(models, rows[0], rows[1], weight, scored=scored)
            take_step(batch)
            loss += batch.loss
            norms = [None] * len(turns) if batch.norms is None else as_float64(batch.norms)
            for turn, found in zip(turns, norms, strict=True):
                turn.learn(found)
        pairs = zip(turns, loss.tolist(), strict=True)
        return [turn.result(value) for turn, value in pairs]

    def most(self) -> int:
        """How many models a pass takes at most."""
        flat = self.worker.flat
        return NUMBERS.get(flat.device.type, MOST_NUMBERS) // max(flat.size, 1)

    def compare(
        self, data: tuple[Tensor, Tensor], turns: Sequence[Turn], models: Tensor, joint: TurnTask,
        rules: AgentConfig, optimizer: OptimizerFactory | None, *, scored: bool,
    ) -> tuple[float, str]:  # fmt: skip
        """How many times as fast as agent by agent, 0 where it cannot be; and that in words."""
        why = obstacle(self.worker, rules, optimizer)
        if not why and len(turns) < 2:
            why = "a pass over several models of this size takes too much memory"
        if why:
            return 0.0, why
        size = joint.batch_size
        places = np.array([turn.begin + np.arange(size) % turn.count for turn in turns])
        x, y = (part[torch.from_numpy(places).to(part.device)] for part in data)
        try:
            speed = self._speed(turns, models, x, y, joint, scored=scored)
        except (RuntimeError, TypeError, ValueError) as error:  # of vmap, or of the module in it
            return 0.0, f"torch.func.vmap cannot take the module: {str(error).splitlines()[0]}"
        return speed, f"several at once are {speed:.2f} times as fast as one by one"

    def _speed(
        self, turns: Sequence[Turn], models: Tensor, x: Tensor, y: Tensor, joint: TurnTask, *,
        scored: bool,
    ) -> float:  # fmt: skip
        """How many times as fast as agent by agent; a RuntimeError where it cannot be done.

        Both compute the gradients of these batches, (n, B, ...), and take steps of size 0.
        """
        worker, flat = self.worker, self.worker.flat

        def still(task: TurnTask) -> TurnTask:
            return task._replace(step=0.0, velocity=task.velocity.copy())

        def one_by_one() -> list[BatchGradient]:
            found = []
            for turn, model, rows, targets in zip(turns, models, x, y, strict=True):
                flat.load(model)
                take_step = LocalStep(worker, still(turn.task))
                step = 0.0 if take_step.plain else None
                found.append(worker.batch(rows, targets, None, scored=scored, step=step))
                take_step(found[-1])
            return found

        def at_once() -> list[BatchGradient]:
            moved = models.clone()
            found = self.batch(moved, x, y, None, scored=scored)
            LocalStep(worker, still(joint), models=moved)(found)
            return [found]

        together = worker.flatten(self.batch(models, x, y, None, scored=False), (len(turns),))
        for model, rows, targets, found in zip(models, x, y, together, strict=True):
            flat.load(model)
            own = worker.flatten(worker.batch(rows, targets, None, scored=False))
            if not torch.allclose(own, found, rtol=SAME, atol=SAME * own.abs().max().item()):
                raise RuntimeError("its gradients are not those of single models")
        clock = clock_of(flat.device)
        seconds: list[list[float]] = []
        begin, end = clock(), time.perf_counter() + MOST_SECONDS
        while len(seconds) < REPEATS or (
            clock() < begin + LEAST_SECONDS and time.perf_counter() < end
        ):
            seconds.append([])
            for run in (one_by_one, at_once):
                before = clock()
                float(run()[-1].loss.sum())  # waits for a device
                seconds[-1].append(clock() - before)
        apart, once = np.array(seconds).min(0)
        return float(apart / once)


def clock_of(device: torch.device) -> Callable[[], float]:
    """Seconds that other work on the machine does not lengthen, where there is such a clock.

    The thread that calls PyTorch computes too, and waits for the other threads where it needs them:
    its own processor time is that of an idle machine. A device keeps its own time.
    """
    return time.thread_time if device.type == "cpu" else time.perf_counter


def alike(turns: Sequence[Turn], group: int | None) -> list[list[int]]:
    """The places of the turns of one length within every `group` of them; alone without groups."""
    if not group:
        return [[i] for i in range(len(turns))]
    places: dict[tuple[int, int, int], list[int]] = {}
    for i, turn in enumerate(turns):
        key = (i // group, turn.task.steps, turn.task.batch_size)
        places.setdefault(key, []).append(i)
    return list(places.values())


def obstacle(worker: Worker, rules: AgentConfig, optimizer: OptimizerFactory | None) -> str:
    """Why turns must be taken agent by agent, whatever the module computes; "" if nothing is."""
    if optimizer is not None:
        return "the agents' own optimizer moves one model at a time"
    if worker.exact_norms is not None:
        return "score='exact' looks at one model at a time"
    if worker.flat.trained < worker.flat.size:
        return "the module has buffers that training changes, such as those of batch norm"
    if rules.examples.refresh == Refresh.ALL:
        return "every turn begins with the scores of all its examples"
    if not has_fixed_size(rules.example_design):
        return "the design of the examples draws batches of different sizes"
    return ""
