"""Servers that do more with the step of a round than add it.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar and McMahan, "Adaptive Federated
Optimization" (ICLR 2021), arXiv 2003.00295: FedAdagrad, FedAdam and FedYogi of its algorithm 2.
Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution" (2019), arXiv
1909.06335: FedAvgM, the cloud's momentum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from isfed.base.argument_checks import check_positive
from isfed.methods.federated import Add
from isfed.methods.method_protocol import BelowOne, NotNegative, check_record


class MomentumState(NamedTuple):
    """What momentum keeps."""

    velocity: np.ndarray


@dataclass(frozen=True, kw_only=True)
class ServerMomentum(Add):
    """FedAvgM, momentum at the cloud: v <- momentum v + step, w <- w + step_size v.

    Args:
        step_size: the step size of the cloud; 1 takes the round's step as it is.
        momentum: at least 0 and below 1.
    """

    step_size: NotNegative = 1.0
    momentum: BelowOne = 0.9

    def __post_init__(self) -> None:
        check_record(self)

    def init(self, params: np.ndarray, rounds_per_pass: float = np.inf) -> MomentumState:
        return MomentumState(np.zeros(params.size))

    def move(self, state, params, step) -> tuple[np.ndarray, MomentumState]:
        velocity = self.momentum * state.velocity + step
        return params + self.step_size * velocity, MomentumState(velocity)


class MomentsState(NamedTuple):
    """The averages of the steps and of their squares."""

    first: np.ndarray
    second: np.ndarray


@dataclass(frozen=True, kw_only=True)
class _Adaptive(Add):
    """m <- beta_1 m + (1 - beta_1) step, w <- w + step_size m / (sqrt(v) + tau).

    Args:
        step_size: eta of the paper.
        beta_1: the decay rate of the average of the steps.
        tau: how adaptive it is; v starts at tau^2.
    """

    step_size: NotNegative = 0.1
    beta_1: BelowOne = 0.9
    tau: Annotated[float, check_positive] = 1e-3

    def __post_init__(self) -> None:
        check_record(self)

    def init(self, params: np.ndarray, rounds_per_pass: float = np.inf) -> MomentsState:
        return MomentsState(np.zeros(params.size), np.full(params.size, self.tau**2))

    def _second(self, second: np.ndarray, square: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def move(self, state, params, step) -> tuple[np.ndarray, MomentsState]:
        first = self.beta_1 * state.first + (1.0 - self.beta_1) * step
        second = self._second(state.second, step * step)
        move = self.step_size * first / (np.sqrt(second) + self.tau)
        return params + move, MomentsState(first, second)


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(_Adaptive):
    """FedAdagrad, the cloud's Adagrad: v <- v + step^2; the paper uses beta_1 = 0."""

    beta_1: BelowOne = 0.0

    def _second(self, second: np.ndarray, square: np.ndarray) -> np.ndarray:
        return second + square


@dataclass(frozen=True, kw_only=True)
class FedAdam(_Adaptive):
    """FedAdam, the cloud's Adam: v <- beta_2 v + (1 - beta_2) step^2.

    Args:
        beta_2: the decay rate of the average of the squared steps.
    """

    beta_2: BelowOne = 0.99

    def _second(self, second: np.ndarray, square: np.ndarray) -> np.ndarray:
        return self.beta_2 * second + (1.0 - self.beta_2) * square


@dataclass(frozen=True, kw_only=True)
class FedYogi(FedAdam):
    """FedYogi, the cloud's Yogi: v <- v - (1 - beta_2) step^2 sign(v - step^2)."""

    def _second(self, second: np.ndarray, square: np.ndarray) -> np.ndarray:
        return second - (1.0 - self.beta_2) * square * np.sign(second - square)
