"""PyTorch's optimisers and schedulers in the cloud."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from isfed.methods.servers import Add


@contextmanager
def _tried(wanted: str) -> Iterator[None]:
    """Raise a TypeError that says what is wanted if a trial fails."""
    try:
        yield
    except Exception as error:  # what is tried is the user's, and may raise anything
        raise TypeError(f"{wanted}: {type(error).__name__}: {error}") from error


class OptimizerState(NamedTuple):
    """What an optimiser of PyTorch remembers, as the bytes of a file."""

    optimizer: np.ndarray


@dataclass(frozen=True)
class TorchServer(Add):
    """An optimiser of PyTorch as the cloud's, for `Served`: the round's step is -gradient.

    Args:
        optimizer: from the parameters to a torch.optim.Optimizer, e.g. partial(torch.optim.Adam,
            lr=0.01).

    Examples:
        >>> server = TorchServer(lambda params: torch.optim.SGD(params, lr=1.0))
        >>> server.move(server.init(np.zeros(2)), np.zeros(2), np.array([1.0, -2.0]))[0]
        array([ 1., -2.])
    """

    optimizer: Callable[..., torch.optim.Optimizer]

    def __post_init__(self) -> None:
        with _tried(
            "optimizer must be a function from parameters to a torch.optim.Optimizer that steps by "
            "gradients alone, e.g. partial(torch.optim.Adam, lr=0.01)"
        ):
            self.move(self.init(np.zeros(1)), np.zeros(1), np.zeros(1))

    @property
    def name(self) -> str:
        return type(self.optimizer([torch.zeros(1)])).__name__

    def init(self, params: np.ndarray, rounds_per_pass: float = np.inf) -> OptimizerState:
        return OptimizerState(np.empty(0, np.uint8))

    def move(
        self, state: OptimizerState, params: np.ndarray, step: np.ndarray
    ) -> tuple[np.ndarray, OptimizerState]:
        model = torch.tensor(params, requires_grad=True)
        made = self.optimizer([model])
        if state.optimizer.size:
            stored = io.BytesIO(state.optimizer.tobytes())
            made.load_state_dict(torch.load(stored, weights_only=True))
        model.grad = torch.tensor(-step)
        made.step()
        file = io.BytesIO()  # whatever an optimiser remembers, torch.save can write
        torch.save(made.state_dict(), file)
        kept = np.frombuffer(file.getvalue(), np.uint8)
        return model.detach().numpy(), OptimizerState(kept)


@dataclass(frozen=True)
class TorchSchedule:
    """A scheduler of PyTorch as a schedule for `Scheduled`, stepped once per round.

    Args:
        step_size: that of the first round, as the optimiser's lr.
        scheduler: from an optimiser to a scheduler, e.g. partial(CosineAnnealingLR, T_max=100).

    Examples:
        >>> halve = TorchSchedule(0.8, lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5))
        >>> [halve(i) for i in range(5)]
        [0.8, 0.8, 0.4, 0.4, 0.2]
    """

    step_size: float
    scheduler: Callable[[Any], Any]
    _known: list[float] = field(default_factory=list, init=False, repr=False, compare=False)
    _made: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        with _tried(
            "scheduler must be a function from an optimizer to a scheduler that steps once per "
            "round without arguments, e.g. partial(CosineAnnealingLR, T_max=100)"
        ):
            self(1)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": [], "_made": []}

    def __call__(self, round_index: int) -> float:
        """The step size of a round: the same whatever rounds were asked for before."""
        if not self._made:
            optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=self.step_size)
            self._made.extend((optimizer, self.scheduler(optimizer)))
        optimizer, scheduler = self._made
        while len(self._known) <= round_index:
            self._known.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()  # PyTorch warns if a scheduler steps before its optimiser
            scheduler.step()
        return self._known[round_index]
